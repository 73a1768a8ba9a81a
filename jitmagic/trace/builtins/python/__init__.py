"""Builtins and standard-library callables that the tracer models.

Handlers register in the tables of `builtins/registry.py`, by callable or by method.

    constructors, containers, set_methods, counters   containers and their methods
    iteration, iterator_tools                         iter, next, range, sorted; itertools
    numbers, sums, ordering, operators                math, sum, heapq, bisect, operator
    texts, patterns                                   str, repr, format, f-strings; re
    introspection, objects, signatures, wrappers      isinstance, getattr, super; inspect
    copying                                           copy and deepcopy
    clocks, logs, exit_stacks                         time, logging, warnings, contextlib
    impure_calls                                      calls that always break
"""
