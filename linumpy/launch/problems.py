"""Problems of a launch, collected and reported together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from linumpy.core.errors import InputError


class Problem(NamedTuple):
    """One reason to refuse a launch: what is wrong and what to do, then each place."""

    text: str
    details: Sequence[str] = ()


class ProblemsError(InputError):
    """A launch that is refused; ``str`` is one line, `lines` has all of it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        head = "" if len(problems) == 1 else f"{len(problems)} problems, nothing was started: "
        super().__init__(head + "; ".join(problem.text for problem in problems))

    def lines(self) -> list[str]:
        """Return each problem on a line of its own, and its details below it."""
        indent = "" if len(self.problems) == 1 else "  "
        lines = [] if not indent else [f"{len(self.problems)} problems, nothing was started:"]
        for problem in self.problems:
            # The base class makes each printable, and bounds it.
            lines.append(f"{indent}{InputError(problem.text)}")
            lines += [f"{indent}  {InputError(detail)}" for detail in problem.details]
        return lines
