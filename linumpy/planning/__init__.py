"""Estimate of a run before it begins: sizes, memory, time."""
