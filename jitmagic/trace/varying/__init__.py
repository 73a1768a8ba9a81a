"""Decides which sizes and numbers of a frame are symbols."""
