"""jitmagic."""
