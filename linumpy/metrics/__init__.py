"""What is measured of each stage, read from its model, and the limits it is judged by."""
