"""Mathematics of places: interface, focal curvature, resampling, correlation, networks."""
