"""Slices that are missing, made from their neighbours."""
