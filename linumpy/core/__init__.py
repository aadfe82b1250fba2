"""Errors, log, device policy, leases of GPUs, memory, process start-up and exit status."""
