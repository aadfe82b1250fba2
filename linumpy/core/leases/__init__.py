"""Leases of GPUs: which process may use which GPU, and how much of its memory."""
