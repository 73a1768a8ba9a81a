"""Compares compiled code with eager, and shrinks what differs."""
