"""Interpolate missing slices from their neighbours."""
