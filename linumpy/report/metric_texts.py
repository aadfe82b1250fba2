"""What is said of metrics beyond their limits."""

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
    "response_error": (
        "Axial response uncertain",
        "Brightness along depth and attenuation may be off: the profile is short or noisy, or no "
        "confocal response describes it.",
        "Look at the axial response in the section Microscope; more agarose tells more.",
    ),
    "noise_excess": (
        "Noise falls with depth",
        "Water is brighter than the darkest deep planes. Their noise is subtracted, which is too "
        "little near the surface.",
        "Subtract the mean spectrum before the Fourier transform; doubt attenuation near the face.",
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
    "torn_pairs": (
        "A tile does not fit together",
        "Neighbours match it clearly, but in places that contradict each other: B-scans were lost "
        "or recorded twice, or the stage moved during the scan. Its tissue is torn or doubled by "
        "as much as the brackets say.",
        "Look at the AIPs of the tiles named; leave out the one that is torn, or scan it again.",
    ),
    "stage_linear": (
        "Stage scaled, rotated or sheared against the pixels",
        "Tiles are placed by their pixels. If the resolution in the headers is wrong or the scan "
        "is bent, all distances and angles of the brain are off by as much; if the stage is, none.",
        "Image a ruled target: compare it with the resolution and with the stage.",
    ),
    "register_tiles.confidence": (
        "Tiles match weakly",
        "Their positions rest on little.",
        "Check the overlap and the contrast of the raw tiles.",
    ),
    "register_tiles.galvo_confidence": (
        "Fly-back of the galvo hardly found",
        "Its A-lines should be dark, or show the tile backwards. Others may have been cut out.",
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
    "crop_3d_mosaic_below_interface.mask_coverage": (
        "The cut face was hardly seen",
        "It is where A-lines turn from dark to bright. Without water or air above the tissue there "
        "is none in the image: the face is guessed, and what lies above it is cut off.",
        "Record A-lines that begin above the tissue. If they do, look at the slice: is it focused?",
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
    "mu_error": (
        "Attenuation is uncertain",
        "Tissue departs from the law that goes from brightness to attenuation, the axial response "
        "is not known well, or the method leaves out the light from below: grey and white matter "
        "may not be told apart.",
        "Look at mu_error_per_mm in models/; measure no attenuation where it is as large.",
    ),
    "exponent_departure": (
        "Brightness and attenuation do not go together as published",
        "Dark tissue is steeper than bright tissue, or attenuation grows faster than brightness. "
        "Attenuation rests on that law; its stated error is larger.",
        "Compare with the slopes of single A-lines before attenuation is interpreted.",
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
    "lean": (
        "The stack of slices leans",
        "Each slice lies aside of the one above it by the same step. A beam that is tilted against "
        "the axis of the cuts looks like that, and shears the brain; so does a stage that drifts, "
        "which is corrected rightly. Images do not tell which it is.",
        "Check that the beam is vertical: image a ruled target at two depths.",
    ),
    "rotation_max": (
        "A slice was rotated far",
        "By more than slices usually are. It is turned back.",
        "Look at the slice beside its neighbours; check how the block is held.",
    ),
    "z_offset_std": (
        "Depths spread about the stated ones",
        "Slices lie elsewhere than stage and interval say.",
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
    "light_change": (
        "A slice is much brighter or dimmer than those around it",
        "Each slice is scaled to its own tissue, so that the brain shows it alike, but noise and "
        "what is lost in it differ.",
        "Look for changed laser power, gain or focus, or a bubble over all of the slice.",
    ),
    "uneven_cut": (
        "A cut was uneven",
        "It was thicker or thinner than stage, slice thickness or interval say, or these err.",
        "Look at the depths in the section Alignment; check blade and stage.",
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
