"""Writes matrix products inside the renderers' kernels.

cpp writes small float32 products and chains of them in C++; dequantised_cpp and dequantised_triton
write products with quantised weights.
"""
