"""Lets the ranks of a distributed program compile, and run, the same functions alike.

identity   names of frames and variants that are the same in every process
varying    sizes and numbers that differ between calls of any rank are symbols on all
limits     ranks stop compiling a frame together, and try again together
"""
