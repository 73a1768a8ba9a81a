"""Renders fused loop nests as Triton.

renderer   the Python module of a schedule's kernels, and its candidates for tuning
tile       the tile of a nest: blocks of points, and warps
loops      the loop form: the passes of a nest over its tile
printer, expressions   one function: its statements; values and offsets
ops        how Triton writes every operation, constant and conversion
device_functions   the functions that kernels call
"""
