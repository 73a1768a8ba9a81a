"""Tensors, and the functions of torch that become nodes of the graph."""
