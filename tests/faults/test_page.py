"""docs/robustness.md names tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "robustness.md"


def rows():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| ---")]


def test_every_named_test_is_there():
    """Seen to fail with one letter of a name changed."""
    there = set()
    for path in (ROOT / "tests").rglob("*.py"):
        there.add(path.name)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.ClassDef)
        there |= {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    named = set(re.findall(r"`((?:test|check)_\w+(?:\.py)?|Test\w+)`", "\n".join(rows())))
    assert len(named) > 100
    assert sorted(named - there) == []


def test_every_row_names_a_test():
    """Seen to fail with the last cell of a row emptied."""
    for row in rows():
        if row.startswith(("| what |", "| input |")):
            continue
        last = row.split("|")[-2]
        assert "`" in last or "same" in last or "by hand" in last, row


def test_every_named_test_was_seen_to_fail():
    """By its docstring. Seen to fail with one of them taken out."""
    named = set(re.findall(r"`(test_\w+|Test\w+)`", "\n".join(rows())))
    silent = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in named:
                said = ast.get_docstring(node) or ""
                if not re.search(r"\b[Ss]een to (fail|hang|wait|lose)\b", said):
                    silent.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert silent == []
