"""The 2.5D flow: one picture a slice from projections along depth, all slices stacked."""
