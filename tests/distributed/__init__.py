"""Programs that run on two processes, which gloo connects: eager against jitmagic on each.

    python -m tests.distributed [--system jitmagic torch] [--only WORD] [--table FILE]

`corpus` has the form of a program, the modules that it imports have the programs, `rank` is one of
the two processes, and `runner` starts the pair, watches it and collects the outcomes.
"""
