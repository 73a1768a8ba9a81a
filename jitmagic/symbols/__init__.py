"""symbols: arithmetic on numbers that are not known while a program is compiled.

    interned.py   equal nodes are one object
    expr.py       integer expressions over leaves, in a normal form: they address memory

Comes in: numbers of a program. Goes out: expressions. Nothing here knows of tensors or graphs.
"""
