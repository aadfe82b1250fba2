"""Illumination, axial response, attenuation, bias field and normalisation."""
