"""User-written Triton kernels inside tagged functions, run by Triton's interpreter."""
