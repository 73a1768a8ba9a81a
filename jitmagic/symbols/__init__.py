"""symbols: arithmetic on numbers that are unknown while a program is compiled.

    interned.py   equal nodes are one object.
    interval.py   ranges of values, with one arithmetic for ints and floats.
    expr.py       integer expressions over leaves, in a normal form, for memory addresses.
    scalar.py     symbols, and the results of Python's operators on them.
    size.py       dimensions of tensors, which compute like ints without being ints.
    context.py    assumptions of one trace about its symbols: `decide`, `require`, `Specialize`.

In: numbers of a program. Out: expressions, their ranges, and the ranges that compiled code assumes
of the symbols. Nothing here depends on tensors or graphs.
"""
