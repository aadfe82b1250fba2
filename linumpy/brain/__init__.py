"""Slices to one brain: registration, gaps, stacking, bias field, atlas, manual alignment."""
