"""How fast arrays are read, beside the limits of the machine."""
