"""Metrics of stages, read from their models, and the limits that they are judged by."""
