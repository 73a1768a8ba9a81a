"""Renders fused loop nests as C++ for vectors and threads.

renderer       the translation units of a schedule's kernels
outer_loops, loops   the loops of a kernel: threads, rows, tiles; passes along vector lanes
sums, blocks   long sums of floats as blocks
printer, expressions   one function: its statements; values and offsets
reductions, ops, text  accumulators; scalar operations; types and literals
"""
