"""One HTML file that tells a person how a reconstruction went."""
