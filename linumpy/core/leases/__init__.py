"""Which process may use which GPU, and how much of its memory."""
