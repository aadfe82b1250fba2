"""Follow an acquisition that is being written, and judge every slice before the next cut."""
