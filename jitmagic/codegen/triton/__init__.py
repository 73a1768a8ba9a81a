"""Renders fused loop nests as Triton.

renderer   the Python module of a schedule's kernels, and its candidates for tuning
tile, candidates   the tile of a nest: blocks of points, and warps; others to measure
loops      the loop form: the passes of a nest over its tile
printer, programs   one function: its statements; where its blocks begin
expressions, addresses, offsets, draws   values, elements of memory, index arithmetic
ops        how Triton writes every operation, constant and conversion
device_functions   the functions that kernels call
"""
