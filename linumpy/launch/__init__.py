"""Answers to the workflow before and beside its tasks: input, output folder, records.

Standard library only, from Python 3.9 on, as it runs where Nextflow is launched: perhaps without
an environment, while tasks have theirs in containers. ``__main__.py`` is what Nextflow starts.
"""
