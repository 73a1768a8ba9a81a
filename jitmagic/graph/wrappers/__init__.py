"""Wrapper subclasses of torch.Tensor in graphs: calls that make them and take them apart.

wrapping   layouts, the differentiable calls between a wrapper and its inner tensors
nodes      adds the nodes of these calls to a graph under construction
"""
