"""Fuzzers of what reads files of others; ``python -m tests.faults.fuzz TARGET`` runs one."""
