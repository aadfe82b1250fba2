"""Labels of the accuracy metrics in the report, and what each counts."""

from __future__ import annotations

LABELS = {
    "tile_positions_px": ("Tile positions, RMS an axis", "tiles"),
    "slice_xy_px": ("Slice positions across, worst slice", "slices"),
    "slice_z_voxel": ("Slice positions in depth, worst slice", "slices"),
    "slice_rotation_deg": ("Rotation of slices, RMS", "slices"),
    "slice_drift_px": ("Drift of slices, RMS about their mean", "slices"),
    "pair_confidence_auc": ("Confidence of slice pairs, area under the ROC curve", "pairs"),
    "interface_surface_voxel": ("Surface of the cut face, RMS", "cells"),
    "attenuation_grey_percent": ("Attenuation of grey matter, error of the median", "voxels"),
    "attenuation_white_percent": ("Attenuation of white matter, error of the median", "voxels"),
    "axial_flatness_percent": ("Course of brightness along depth, RMS about flat", "voxels"),
    "rehoming_f1": ("Glitches of the stage found, F1", "glitches"),
    "bad_slices_found": ("Bad slices left out, F1", "slices"),
    "gaps_filled": ("Gaps whose tissue is there", "gaps"),
    "atlas_landmark_voxel": ("Tissue in the atlas, RMS", "landmarks"),
    "interface_voxel": ("Depth of the cut face, median over slices", "slices"),
    "interface_aline_voxel": ("Depth of the cut face, median over A-lines", "A-lines"),
    "focal_surface_voxel": ("Focal surface, RMS", "pixels"),
    "flat_field_percent": ("Flat field, RMS", "pixels"),
    "seams": ("Seams between tiles, median |ln ratio|", "pairs"),
    "correlation": ("Correlation with the truth", "slices"),
    "correlation_absolute": ("Correlation with the truth as it is", "slices"),
    "correlation_of_placed": ("Correlation with the truth over that of true places", "slices"),
    "correlation_of_bound": ("Correlation with the truth over its bound", "slices"),
    "sharpness": ("Sharpness", "slices"),
    "overlap_ncc": ("Agreement of overlapping slices", "overlaps"),
    "prior_only_tiles_px": ("Tiles held by the stage alone, RMS an axis", "tiles"),
}


def label(name: str) -> str:
    """Return the label of a metric; its key when there is none."""
    return LABELS.get(name, (name, ""))[0]


def counted(name: str) -> str:
    """Return what a metric counts, or nothing."""
    return LABELS.get(name, ("", ""))[1]
