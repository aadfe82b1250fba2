"""Illumination, average intensity projection and normalisation."""
