"""Renders fused loop nests as Triton.

renderer   the Python module of a schedule's kernels, and its candidates for tuning
kernel     one kernel: the passes of a nest over its tile
tile       the tile of a nest: blocks of points, and warps
values     values as expressions, in nested scopes
ops        how Triton writes every operation, constant and conversion
"""
