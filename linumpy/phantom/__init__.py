"""A known brain, imaged by a simulated serial-section OCT microscope in the real raw format."""
