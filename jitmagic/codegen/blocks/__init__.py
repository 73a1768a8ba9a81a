"""Renders kernels as programs of the block interpreter (extensions/interpreter), which needs no
compiler.

    block_loops   a pass: chooses the axis along which each loop nest advances by blocks
    assembly      instructions on virtual registers, and the assignment of registers
    values        scalars, blocks, and the integers of offsets, as instructions
    pairs, ops    two operations as one; their names
    renderer      kernels of the kernel language as instructions
"""
