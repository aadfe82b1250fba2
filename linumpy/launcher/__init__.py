"""Nextflow without an installation: its files, Java, and the workflow in the wheel."""
