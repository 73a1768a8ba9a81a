"""Loops that are not unrolled: which run as Python, and which of their rounds are compiled."""
