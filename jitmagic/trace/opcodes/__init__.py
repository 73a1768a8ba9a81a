"""Opcode handlers, by family.

An opcode without a handler is a graph break; `registry.py` has the table of handlers, and the
reason for each unsupported opcode. To add one, write a handler in the file of its family. If its
argument is not a plain int, its kind goes into the tables of `bytecode/versions/`.

    stack           moves on the operand stack, constants
    locals          local variables, cells and globals
    attributes      attributes and subscripts
    comparisons     operators, comparisons, membership
    containers      builds, extends and unpacks containers, strings and slices
    control         jumps, loops, returns, yields
    calls           calls, in the forms of each Python version
    functions       makes functions
    class_bodies    class statements
    imports         imports of modules that are loaded already
    exceptions      raises and handles exceptions
    with_           `with` blocks
    patterns        `match` statements
    intrinsics      interpreter helpers called by number (3.12 and later)
"""
