"""Fuzzers of what reads third-party files; ``python -m tests.faults.fuzz TARGET`` runs one."""
