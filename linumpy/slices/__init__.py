"""The slice engine: tiles, stages, stores and the passes over them."""
