"""Verdicts on slices: what was found, where, and what to do before the next cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

PASS, LOOK, STOP = "pass", "look", "stop"
LEVELS = (PASS, LOOK, STOP)
WORDS = {PASS: "pass", LOOK: "look before the cut", STOP: "stop before the cut"}
"""Verdicts as people read them: on a terminal in capitals unless it is a pass."""

ADVICE = {
    "missing_tile": "scan these tiles before the cut",
    "tile_short": "scan these tiles again before the cut",
    "dead_tile": "scan these tiles again before the cut; check light and detector",
    "dark_tile": "look at these tiles; scan them again if tissue is in them",
    "defocus": "focus, and scan these tiles again before the cut",
    "debris": "rinse the face, and scan these tiles again before the cut",
    "bubble": "remove the bubble, and scan these tiles again before the cut",
    "galvo_drift": "check the trigger of the galvo; the drift is corrected as far as it is seen",
    "stage_glitch": "check the stage's zero; positions of this slice are not reliable",
    "missed_cut": "the cut before this slice did not happen: check knife and stage before the next",
    "double_cut": "the cut before this slice took more than an interval: check the stage's z",
    "uneven_cut": "check the thickness of the cuts",
    "wedge": "the face falls across the mosaic otherwise than before: check knife and mount",
    "no_match": "the slice does not match the one before: look at both",
    "border": "tissue touches the border: widen the mosaic before the cut",
    "disk_full": "make room on the disk",
    "slow_scan": "the slice took longer than those before: check stage and network",
    "not_judged": "the slice could not be judged: look at it",
}
"""What to do, by kind; docs/follow.md says what each kind means."""

KINDS = tuple(ADVICE)


@dataclass(frozen=True)
class Reason:
    """One finding.

    Attributes
    ----------
    kind
        One of `KINDS`.
    level
        ``look`` or ``stop``.
    text
        What was found, in words.
    tiles
        Names of the tiles it concerns, such as ``x01_y02``; empty for the whole slice.
    value, limit, unit
        The metric behind it and the limit that it passed; None where there is none.
    """

    kind: str
    level: str
    text: str
    tiles: tuple[str, ...] = ()
    value: float | None = None
    limit: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ADVICE or self.level not in (LOOK, STOP):
            raise ValueError(f"{self.kind}, {self.level}: expected a known kind, look or stop")

    def to_json(self) -> dict[str, Any]:
        """Return it for a line of ``verdicts.jsonl``, the advice with it."""
        return {**asdict(self), "tiles": list(self.tiles), "advice": ADVICE[self.kind]}


@dataclass(frozen=True)
class Verdict:
    """Verdict on a slice.

    Attributes
    ----------
    seconds_after_last_tile
        From the last change of the slice's files to the verdict.
    figures
        Numbers of the slice that later ones are compared with; None where one was not measured.
    """

    slice_id: int
    reasons: tuple[Reason, ...] = ()
    n_tiles: int = 0
    seconds_after_last_tile: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The gravest level of its reasons; ``pass`` without one."""
        return max((r.level for r in self.reasons), key=LEVELS.index, default=PASS)

    def to_json(self) -> dict[str, Any]:
        """Return the line of ``verdicts.jsonl``."""
        return {
            "slice": self.slice_id,
            "verdict": self.verdict,
            "reasons": [reason.to_json() for reason in self.reasons],
            "seconds_after_last_tile": round(self.seconds_after_last_tile, 2),
            "n_tiles": self.n_tiles,
            "figures": self.figures,
        }

    def to_text(self) -> str:
        """Return one line for a terminal."""
        words = WORDS[self.verdict]
        name = words if self.verdict == PASS else words.upper()
        parts = [
            f"{r.kind}{_named(r.tiles)}: {r.text}; {ADVICE[r.kind]}"
            for r in sorted(self.reasons, key=lambda r: -LEVELS.index(r.level))
        ]
        told = " | ".join(parts) or f"{self.n_tiles} tiles"
        return f"slice z{self.slice_id:02d}  {name}  {told}"


def _named(tiles: Sequence[str]) -> str:
    more = "" if len(tiles) <= 6 else f" and {len(tiles) - 6} more"
    return f" ({', '.join(tiles[:6])}{more})" if tiles else ""
