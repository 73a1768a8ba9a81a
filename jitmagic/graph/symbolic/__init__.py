"""Graphs whose sizes and numbers vary: symbols in their metas, ranges, one graph for all."""
