"""Models of callables that are not inlined: C functions, and some Python functions.

`registry.py` has the tables, by callable and by method; a handler gets the machine and Values, and
returns a Value. A callable in no table is a graph break. `python/` has builtins and the standard
library, `pytorch/` has torch and numpy.
"""
