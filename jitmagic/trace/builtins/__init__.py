"""Models of callables that are not inlined: C functions, and some Python functions.

A handler models the calls of one callable: it gets the machine and argument Values, and returns a
Value. `registry.py` registers handlers by callable (`@handles`) or method (`@method`). A C function
without a handler is a graph break. `python/` has builtins and the standard library, `pytorch/` has
torch and numpy.
"""
