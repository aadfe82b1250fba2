"""Correlation-based registration of images, slices against each other."""
