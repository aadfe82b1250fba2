"""Alignment of a brain to an atlas."""
