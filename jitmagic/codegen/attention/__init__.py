"""Builds the kernels of flex_attention.

kernel      describes a kernel for any renderer
cpp         the call of a header file
triton      the Triton kernels; tile_loops has what they share
tiles       the tiles of a program
"""
