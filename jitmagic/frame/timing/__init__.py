"""Decides by times: whether a compile pays, and whether its result is faster than eager.

All times are those of the program's own calls: nothing runs for a measurement alone.

    pay_back         postpones a compile until it pays
    comparison       times a variant against eager in its first calls and keeps the faster
    backward_timing  times the backward of each timed call
    batch_timing     times short calls in batches
    gpu_timing       times a GPU
"""
