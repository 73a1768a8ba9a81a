"""Decides by times: whether a compile pays, and whether its result is faster than eager.

pay_back         compiles calls that take long to compile once that pays
comparison       times a variant against eager in its first calls and keeps the faster
backward_timing  times the backward of each timed call
batch_timing     times short calls in batches
gpu_timing       times a GPU
"""
