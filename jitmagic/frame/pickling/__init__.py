"""Pickles tagged functions and modules, for workers in other processes.

by_value  reduces a dispatcher to its function and options: the other process tags again
carried   lets pickles bring compiled code, `options={"pickle": "artifact"}`
"""
