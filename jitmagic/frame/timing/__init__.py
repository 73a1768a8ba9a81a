"""Times calls side by side, compiled and eager, and keeps the faster of the two."""
