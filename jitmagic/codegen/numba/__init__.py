"""Renders fused loop nests as numba: scalar loops, for CPUs without a C++ compiler."""
