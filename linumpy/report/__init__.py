"""Report of a reconstruction as one HTML file."""
