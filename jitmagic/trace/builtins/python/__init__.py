"""Builtins and standard-library callables that the tracer models.

Handlers register in the tables of `builtins/registry.py`, by callable or by method.

    containers, set_methods               constructors and methods of containers
    iteration, iterator_tools             iter, next, range, sorted; itertools
    numbers, ordering, operators          math, sum, heapq, bisect, operator
    texts                                 str, repr, format, f-strings, re
    objects, functions                    isinstance, getattr, super; functools, inspect
    copying                               copy and deepcopy
    impure_calls, exit_stacks             clocks, logs, output; contextlib
"""
