"""From slices to one brain: registration, gaps, stacking, bias field, atlas, alignment by hand."""
