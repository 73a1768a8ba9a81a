"""symbols: arithmetic on numbers that are not known while a program is compiled.

    interned.py   equal nodes are one object
    interval.py   which values a number can have: one arithmetic for ints and floats
    expr.py       integer expressions over leaves, in a normal form: they address memory
    scalar.py     symbols, and what Python's operators make of them
    size.py       dimensions of tensors: they compute like ints, and are none
    context.py    what one trace assumes of its symbols: `decide`, `require`, `Specialize`

Comes in: numbers of a program. Goes out: expressions, their ranges, and the ranges that symbols
have to keep to. Nothing here knows of tensors or graphs.
"""
