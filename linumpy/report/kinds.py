"""A finding, and kinds of findings: name, meaning, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.metrics.limits import LIMITS
from linumpy.report.metric_texts import METRICS

PROBLEM, ATTENTION, NOTE = "problem", "warning", "note"
SEVERITIES = (PROBLEM, ATTENTION, NOTE)


@dataclass(frozen=True)
class Kind:
    """What all findings of one kind share.

    Attributes
    ----------
    title
        Its name, for a heading and for the terminal.
    meaning, remedy
        What it does to the brain, and what to do.
    limit
        Where it begins; empty where its being there is the finding.
    """

    title: str
    meaning: str
    remedy: str
    limit: str = ""


@dataclass(frozen=True)
class Finding:
    """All remarks of one kind.

    Attributes
    ----------
    where
        Slices, pairs or tiles, named.
    count
        How many these are.
    value
        What was found: a range and the worst, or reasons with their slices.
    stated
        The terminal names it when a run ends, even as a note.
    """

    severity: str
    kind: Kind
    where: str
    count: int = 1
    value: str = ""
    stated: bool = False

    @property
    def text(self) -> str:
        """The finding in one line, without its place."""
        value = f": {self.value}" if self.value else ""
        return f"{self.kind.title}{value}. {self.kind.remedy}"


MIN_ACCEPTED_SHARE = 0.3
LEAST_PAIRS = 8
"""Along an axis, of which a share says something."""

LOW_CONFIDENCE = 0.4
MANY_LEFT_OUT_SHARE = 0.5
UNCLEAR_DEPTHS_SHARE = 0.5
"""Of neighbouring slices; below it the others determine the depths."""

KINDS = {
    "no_brain": Kind(
        "No brain volume", "The slices were not stacked.", "See the section Run for what failed."
    ),
    "accuracy": Kind(
        "Accuracy target missed",
        "The reconstruction is further from the known truth than it should be.",
        "See the table of accuracy at the end of this page.",
    ),
    "no_data": Kind(
        "No data for a slice",
        "The brain has a gap here.",
        "Look for the slice's raw tiles; gaps of one slice are filled by interpolation.",
    ),
    "open_gap": Kind(
        "A gap stays",
        "The neighbours of the gap do not tell what was there.",
        "Look at the two neighbours; another interpolation_method may bridge it.",
    ),
    "left_out": Kind(
        "Slices left out of the brain",
        "They do not look like their neighbours, match none, or were left out by hand. Nothing "
        "else about them is listed.",
        "Look at each below; to keep one, set use to true in slice_config.csv and run again.",
    ),
    "interpolated": Kind(
        "Slices interpolated from their neighbours",
        "What the brain shows there was not imaged.",
        "Exclude them from measurements; slice_config.csv names them.",
    ),
    "covered": Kind(
        "Missing slices whose tissue the slice above shows",
        "It does so in its deeper part, with less contrast.",
        "Nothing; leave these depths out where contrast is measured.",
    ),
    "rehomed": Kind(
        "The stage lost its zero or told a wrong place",
        "Slices from here on are placed by registration alone.",
        "Compare the section Alignment; check the stage before the next acquisition.",
    ),
    "turned": Kind(
        "All slices are rotated from here on",
        "The block, or what holds it, was probably rotated between two slices. They are turned "
        "back.",
        "Compare the section Alignment; check how the block is mounted.",
    ),
    "stage_axes": Kind(
        "Hardly any tile pairs match",
        "Tiles are probably laid out along the wrong axes.",
        "Check stage_to_array and the overlap; see the section Stage axes.",
        f"at least {100 * MIN_ACCEPTED_SHARE:.0f} % of pairs",
    ),
    "reversed_axis": Kind(
        "Hardly any tile pairs match along one axis",
        "Images are probably mirrored along it, or stage_to_array has the wrong sign there. What "
        "lies along it does not fit together, and the brain is unusable.",
        "Check that axis of stage_to_array; if headers fit it, mirror the raw tiles or give the "
        "other sign with skip_preflight.",
        f"at least {100 * MIN_ACCEPTED_SHARE:.0f} % of pairs along each axis",
    ),
    "uneven_depth": Kind(
        "Brightness along depth is uneven, alike in all slices",
        "What attenuation and the axial response do not explain: fringes of polarisation, noise or "
        "reflections at a depth, a response of another form. The brain has it as bands, and "
        "attenuation as an error.",
        "Look for bands in the section Brain. Where tissue is birefringent, record both "
        "polarisation states and add their powers.",
        f"below {100 * LIMITS['depth_remainder'].warning:g} %, where slices are few below "
        f"{100 * LIMITS['depth_remainder'].error:g} %, which is a problem",
    ),
    "missing_tiles": Kind(
        "Tiles that were not imaged",
        "They are holes in the slice.",
        "Look for their files among the raw tiles.",
    ),
    "alone": Kind(
        "Tiles with tissue that match no neighbour",
        "They stay where the stage put them, and may be off by its error.",
        "Look at them in the section Tiles.",
    ),
    "damaged": Kind(
        "Damaged tiles",
        "They were masked or left out for what their files hold.",
        "Copy these files again from the microscope: see the raw files.",
    ),
    "lines": Kind(
        "Reflections of the optics at fixed depths",
        "Planes of tiles that they outshine are interpolated from those above and below.",
        "Tilt or move the lens, window or cover glass that reflects, for the next acquisition.",
    ),
    "flagged": Kind(
        "Tiles with remarks",
        "Parts of them were masked or mended.",
        "Look at them; docs/formats.md says what each word means.",
    ),
    "foreign": Kind(
        "Bubbles, debris or tears",
        "Tissue is darker there than in the slices above and below, or, down to some depth, than "
        "in the slice above, by more than grey and white matter differ. It is in the brain all the "
        "same. Places: the largest, stage axes 1, 2.",
        "Exclude these places from measurements; look for bubbles before the next acquisition.",
    ),
    "displaced": Kind(
        "Tissue displaced within a slice",
        "A flap, a fold or what slid: slices above and below show it elsewhere, so that the brain "
        "has it twice. Places: the largest, stage axes 1, 2.",
        "Look at the slice there; leave it out (use in slice_config.csv) where that matters.",
    ),
    "reflections": Kind(
        "Bubbles or debris above the cut face",
        "Something reflects in the water there. Cells of 160 µm that are clearly darker below it "
        "are masked, if they are no more than a quarter of the slice; the brain shows them as far "
        "as slices above reach. Places are the stage's, axis 1 and axis 2, of the largest.",
        "Look for bubbles before the next acquisition; linum_follow.py tells before the cut.",
    ),
    "alone_slices": Kind(
        "Slices that match no other slice",
        "They stay where the motors put them.",
        "Is the depth kept (crop_interface_out_depth) larger than the slicing interval?",
    ),
    "unmatched": Kind(
        "Neighbouring slices that could not be matched",
        "Their distance is that of the motors and of other pairs.",
        "Look at both slices; place one by hand with manual_transforms_dir if it is off.",
    ),
    "weak": Kind(
        "Neighbouring slices that match weakly",
        "Their places may be off by a few pixels.",
        "Look at both slices, and at the confidence of slice pairs.",
        f"confidence of at least {LOW_CONFIDENCE:g}",
    ),
    "unclear_depth": Kind(
        "Depths of slices are mostly not measured",
        "They rest on the slicing interval and the stage.",
        "Check slicing_interval_mm, and that slices overlap in depth.",
        f"at most {100 * UNCLEAR_DEPTHS_SHARE:.0f} % of neighbours",
    ),
    "no_overlap": Kind(
        "No overlap in depth was found",
        "The expected one is used.",
        "Look at these slices in the section Alignment.",
    ),
    "unreliable": Kind(
        "Motor shift is less certain, and no match makes up for it",
        "The mosaic changed its shape between two slices.",
        "Look at these slices in the section Alignment.",
    ),
}

REMARKS = {
    "no axial profile": Kind(
        "Axial response not measured",
        "Brightness is not corrected along depth; attenuation holds the response of the optics.",
        "Learn from slices that show agarose or tissue below a clear cut face.",
    ),
    "the axial response was learned from": Kind(
        "Axial response learned from tissue",
        "It cannot be told from attenuation.",
        "Set compensate_psf_zr_initial right to a factor of two; image a rim of agarose.",
    ),
    "cut face found": Kind(
        "Cut face near the top of what is imaged",
        "The true face may lie above.",
        "Look at the slice; begin the imaged depth higher in the next acquisition.",
    ),
    "no agarose was told": Kind(
        "No agarose in a slice",
        "There is none, or it is hardly darker than tissue. Nothing is subtracted: values are not "
        "comparable with those of slices whose agarose is 0, and agarose counts as tissue.",
        "Compare its brightness with that of its neighbours; image a rim of clear agarose.",
    ),
    "light is taken to be even": Kind(
        "Light and tissue cannot be told apart",
        "Where tiles overlap, uneven light shows as a difference. Here none do, and all tiles lie "
        "in one place.",
        "Let tiles overlap by a fifth, or take models of an acquisition with the same optics.",
    ),
    "a large step of the stage": Kind(
        "A large step of the stage lasts",
        "Positions before and after it rest on registration.",
        "Look at the section Alignment; give tile_fov_mm if the stage miscounts whole tiles.",
    ),
    "leave a gap of": Kind(
        "Slices leave a gap in depth",
        "The brain is empty there.",
        "Look for a missing slice; else keep more depth (crop_interface_out_depth).",
    ),
    "no pair measured a depth": Kind(
        "No depth was measured",
        "Slices lie where stage and interval put them.",
        "Check slicing_interval_mm, and that slices overlap in depth.",
    ),
}
"""What stages remark beside their metrics, by words of it."""

REMARK_OF_METRIC = {
    "all steps between slices": "depth_scale",
    "cuts are uneven": "uneven_cut",
    "no pair tells how far apart": "unmeasured_steps",
    "are deformed against": "deformation_seen",
    "lies aside of the one above": "lean",
    "tiles match beside where": "torn_pairs",
    "rotated against most": "rotation_max",
    "of the slices around it": "light_change",
}
"""Remarks that say more of a metric, by words of them."""


def metric_kind(step: str, name: str, description: str, limit: str) -> Kind:
    """Return the kind of a metric that lies beyond its limits."""
    known = METRICS.get(f"{step}.{name}") or METRICS.get(name)
    if known is None:
        title = f"{description[:1].upper()}{description[1:]}"
        return Kind(title, "", f"See {step}_metrics.json in models/.", limit)
    return Kind(*known, limit)
