"""Tiles of one slice: positions, scan distortion, blending."""
