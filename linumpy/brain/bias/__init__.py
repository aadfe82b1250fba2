"""Bias field of a brain: estimation and correction."""
