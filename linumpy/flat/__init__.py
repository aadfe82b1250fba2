"""The 2.5D flow: one image a slice from projections along depth, all slices stacked."""
