"""Simulated serial-section OCT microscope: a known brain in the real raw format."""
