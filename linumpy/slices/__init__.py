"""Slice engine: tiles, stages, stores and the passes over them."""
