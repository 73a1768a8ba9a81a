"""Triton kernels that users write.

launches    operators for launches of kernels
writes      the parameters that a kernel writes, from its code
"""
