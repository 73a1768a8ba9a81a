"""Writes matrix products inside the renderers' kernels.

cpp writes small float32 products and chains of them in C++, blocks for the block interpreter, and
dequantised_cpp those with quantised weights. tensor_cores and matrix_vector choose the tiles of
Triton's, of few rows.
"""
