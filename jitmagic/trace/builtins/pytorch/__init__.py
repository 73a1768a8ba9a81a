"""Callables of torch that need more than one node of the graph."""
