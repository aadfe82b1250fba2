"""Tiles of one slice: where they lie, how their scan is bent, how they are blended."""
