"""The bias field of a brain: learned, and taken off."""
