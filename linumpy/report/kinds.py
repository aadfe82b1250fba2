"""Kinds of findings: name, meaning, and what to do."""

from __future__ import annotations

from dataclasses import dataclass


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


MIN_ACCEPTED_SHARE = 0.3
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
        "They do not look like their neighbours, match none, or were left out by hand.",
        "Look at each below; to keep one, set use to true in slice_config.csv and run again.",
    ),
    "interpolated": Kind(
        "Slices interpolated from their neighbours",
        "What the brain shows there was not imaged.",
        "Exclude them from measurements; slice_config.csv names them.",
    ),
    "covered": Kind(
        "Missing slices covered by the slice above",
        "The deeper part of the slice above shows their tissue, with less contrast.",
        "Nothing, unless the contrast matters there.",
    ),
    "rehomed": Kind(
        "The stage lost its zero or told a wrong place",
        "Slices from here on are placed by registration alone.",
        "Compare the section Alignment; check the stage before the next acquisition.",
    ),
    "stage_axes": Kind(
        "Hardly any tile pairs match",
        "Tiles are probably laid out along the wrong axes.",
        "Check stage_to_array and the overlap; see the section Stage axes.",
        f"at least {100 * MIN_ACCEPTED_SHARE:.0f} % of pairs",
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
    "flagged": Kind(
        "Tiles with remarks",
        "Parts of them were masked or mended.",
        "Look at them; docs/outputs.md says what each word means.",
    ),
    "foreign": Kind(
        "Bubbles, debris or tears",
        "Tissue is darker there than in the slices above and below, by more than grey and white "
        "matter differ, and is in the brain all the same. Places: the largest, stage axes 1, 2.",
        "Exclude these places from measurements; look for bubbles before the next acquisition.",
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

METRICS = {
    "detect_focal_curvature.n_tiles": (
        "Focal surface learned from few tiles",
        "It follows the tissue of these tiles.",
        "Raise learn_max_tiles, or take models of a larger acquisition.",
    ),
    "fix_illumination_3d.n_tiles": (
        "Flat field learned from few tiles",
        "It follows the tissue of these tiles.",
        "Raise learn_max_tiles, or take models of a larger acquisition.",
    ),
    "detect_focal_curvature.residual_rms": (
        "Focal surface does not flatten all tiles",
        "Cut faces are uneven, or the focus moved during the acquisition.",
        "Look at the focal surface in the section Microscope.",
    ),
    "overlap_residual": (
        "Brightness of overlapping tiles still differs",
        "The illumination changed over the acquisition.",
        "Look at the plot of seams.",
    ),
    "field_bound": (
        "Flat field may be off by percent",
        "Overlaps of few tiles, or of a stage that hardly jitters, tell its curvature no better.",
        "Learn from more tiles (learn_max_tiles), or take models of a larger acquisition.",
    ),
    "position_bound": (
        "Tile positions may be off by micrometres",
        "Matches of neighbours are noisy and tell them no closer.",
        "Measure no distances below this; more overlap tells more.",
    ),
    "stretch_bound": (
        "All distances along axis 1 may be off together",
        "Overlaps do not show a stretch of both scan and stage, and this stage jitters too much to "
        "tell. Tiles fit each other all the same.",
        "Calibrate the scan with a ruled target, or learn from more tiles (learn_max_tiles).",
    ),
    "profile_quality": (
        "Axial response fits badly",
        "The axial response does not describe the depth profile.",
        "Look at the axial response; another compensate_psf_method may fit.",
    ),
    "response_max": (
        "Axial response too small",
        "The response is nowhere near its largest value.",
        "Look at the axial response in the section Microscope.",
    ),
    "clear_accepted_share": (
        "Clear tile pairs contradict each other",
        "A tile may be misnamed, or have moved.",
        "Look at the slice in the section Tiles.",
    ),
    "stage_linear": (
        "Stage scaled, rotated or sheared against the pixels",
        "Positions are corrected for it already.",
        "Check resolution and the stage's calibration.",
    ),
    "register_tiles.confidence": (
        "Tiles match weakly",
        "Their positions rest on little.",
        "Check the overlap and the contrast of the raw tiles.",
    ),
    "register_tiles.galvo_confidence": (
        "Fly-back of the galvo hardly found",
        "Its A-lines should be a dark band. Else others may have been cut out in their place.",
        "Leave them out (n_extra 0), or keep them at the end of B-scans (fix_galvo_shift = false).",
    ),
    "register_tiles.residual_rms": (
        "Tile pairs contradict the solved positions",
        "Some tiles of the slice may be off.",
        "Look at the slice in the section Tiles.",
    ),
    "seam": (
        "Seams between tiles may show",
        "Overlapping tiles differ in brightness, median |ln ratio|.",
        "Look at the slice, and at the plot of seams.",
    ),
    "mask_coverage": (
        "Little tissue to measure on",
        "The result rests on a small part of the image.",
        "Look at the image: is there tissue, and is it in focus?",
    ),
    "tissue_coverage": (
        "Little of the slice is tissue",
        "Its attenuation rests on little.",
        "Nothing at the ends of a brain; elsewhere look at the slice.",
    ),
    "capped_share": (
        "Light lost in depth cannot be restored",
        "Tissue is darker with depth there.",
        "Keep less depth (crop_interface_out_depth).",
    ),
    "agarose_coverage": (
        "Little agarose in the slice",
        "The brightness of agarose, which becomes 0, rests on little.",
        "Look whether the slice is darker or brighter than its neighbours.",
    ),
    "register_slices.confidence": (
        "Slices match weakly",
        "Their positions rest on little.",
        "Keep more depth, so that slices share more planes.",
    ),
    "register_slices.residual_rms": (
        "Slice pairs contradict the solved positions",
        "Some slices may be off.",
        "Look at the offsets in the section Alignment.",
    ),
    "depth_residual_rms": (
        "Measured depths contradict the solved ones",
        "Some slices may lie too deep or too high.",
        "Look at the depths in the section Alignment.",
    ),
    "deformation_max": (
        "Slices are bent strongly",
        "More than cutting does.",
        "Look at the slices; switch elastic_enabled off if they are wrong.",
    ),
    "deformation_seen": (
        "Neighbouring slices are deformed against each other",
        "Shift and rotation alone leave them apart locally.",
        "Switch elastic_enabled on.",
    ),
    "deformation_left": (
        "Neighbouring slices differ locally",
        "Deformation was not solved completely.",
        "Look at the stacked slices in all three planes.",
    ),
    "translation_max": (
        "A slice was moved far",
        "Registration contradicts the motors.",
        "Look at the offsets in the section Alignment.",
    ),
    "rotation_max": (
        "A slice was rotated far",
        "By more than slices usually are.",
        "Look at the slice beside its neighbours.",
    ),
    "z_offset_std": (
        "Depths spread about the slicing interval",
        "Slices lie elsewhere than the interval says.",
        "Check slicing_interval_mm; look at the depths in the section Alignment.",
    ),
    "z_step_range": (
        "Steps in depth differ",
        "Cuts are uneven.",
        "Look at the depths in the section Alignment; check the blade.",
    ),
    "shift_sigma": (
        "A slice may lie across from where it belongs",
        "Slices are deformed against each other, and a deformation over the part that shows tissue "
        "looks like a shift.",
        "Look at pairs in the section Alignment: one that is wrong makes all less sure. Else less "
        "deformation (blade, embedding) is all that helps.",
    ),
    "turn_sigma": (
        "A slice may be rotated against where it belongs",
        "Slices are deformed against each other, and a deformation over the part that shows tissue "
        "looks like a rotation.",
        "Look at pairs in the section Alignment: one that is wrong makes all less sure. Else less "
        "deformation (blade, embedding) is all that helps.",
    ),
    "depth_sigma": (
        "Depth of a slice is uncertain",
        "The largest standard error of a depth below the first slice.",
        "Look at the depths in the section Alignment.",
    ),
    "depth_scale": (
        "All steps in depth are longer or shorter than expected",
        "The axial voxel or the slicing interval differs from the stated one.",
        "Check axial_resolution (refractive index) and slicing_interval_mm.",
    ),
    "unmeasured_steps": (
        "Depth between some slices not measured",
        "They share too few planes, or too little tissue; uneven cuts between them are not seen.",
        "Image deeper, or leave fewer slices out; measure no depths across them.",
    ),
    "uneven_cut": (
        "A cut was uneven",
        "It was thicker or thinner than the interval.",
        "Look at the depths in the section Alignment; check the blade.",
    ),
    "empty_fraction": (
        "Planes without data",
        "The brain has gaps.",
        "See the missing slices.",
    ),
    "align_to_ras.overlap": (
        "Part of the brain lies outside the atlas",
        "The brain may be in the wrong place, or on the wrong side.",
        "Look at the section Atlas; name ras_input_orientation if it is wrong.",
    ),
    "margin": (
        "Orientation is not clear",
        "Another one fits the atlas nearly as well.",
        "Look at the section Atlas; name ras_input_orientation.",
    ),
}
"""Title, meaning and remedy of a metric beyond its limits, by its name or by stage and name."""


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
        "Nothing is subtracted: its values are not comparable with those of other slices.",
        "Compare its brightness with that of its neighbours; image a rim of agarose.",
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
}
"""Remarks that say more of a metric, by words of them."""


def metric_kind(step: str, name: str, description: str, limit: str) -> Kind:
    """Return the kind of a metric that lies beyond its limits."""
    known = METRICS.get(f"{step}.{name}") or METRICS.get(name)
    if known is None:
        title = f"{description[:1].upper()}{description[1:]}"
        return Kind(title, "", f"See {step}_metrics.json in models/.", limit)
    return Kind(*known, limit)
