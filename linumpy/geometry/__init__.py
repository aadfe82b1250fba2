"""Interface, focal curvature, resampling, galvo repair and cropping."""
