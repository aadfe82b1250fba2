"""Which items pairs join, and which pairs no others confirm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def bridges(n_items: int, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return which pairs no loop of other pairs confirms.

    Without such a pair its two items would be in different components (Tarjan, Inf. Process.
    Lett. 2, 160, 1974).
    """
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(n_items)]
    for number, (a, b) in enumerate(pairs):
        neighbours[a].append((b, number))
        neighbours[b].append((a, number))
    found = np.zeros(len(pairs), bool)
    # The order of a depth-first walk, and the earliest item that a subtree has a pair to.
    order, low = [0] * n_items, [0] * n_items
    clock = 0
    for root in range(n_items):
        stack = [] if order[root] else [(root, -1, iter(neighbours[root]))]
        while stack:
            item, via, rest = stack[-1]
            if not order[item]:
                clock += 1
                order[item] = low[item] = clock
            for other, number in rest:
                if not order[other]:
                    stack.append((other, number, iter(neighbours[other])))
                    break
                if number != via:
                    low[item] = min(low[item], order[other])
            else:
                stack.pop()
                if stack:
                    parent = stack[-1][0]
                    low[parent] = min(low[parent], low[item])
                    found[via] = low[item] > order[parent]
    return found


def connected_components(n_items: int, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the number of each item's group, joined by pairs; −1 for a single item."""
    group = np.arange(n_items)

    def first_of(item: int) -> int:
        while group[item] != item:
            # Halve the way for those who come after.
            group[item] = group[group[item]]
            item = int(group[item])
        return item

    for a, b in pairs:
        one, other = sorted((first_of(a), first_of(b)))
        group[other] = one
    firsts = np.array([first_of(item) for item in range(n_items)], dtype=int)
    names, inverse, count = np.unique(firsts, return_inverse=True, return_counts=True)
    number = np.full(len(names), -1)
    joined = count > 1
    number[joined] = np.arange(int(joined.sum()))
    return number[inverse]
