"""Makes sizes and numbers of a frame symbols, and constants again where that is needed.

A dimension, stride or number becomes a symbol if it differed between calls, is declared dynamic, or
is certain to change (growing_sizes.py). Guards restrict its range. If the program needs its value,
`Specialize` ends the attempt, and the next attempt has a guarded constant in its place.

    attempt_symbols  the symbols of one attempt at a trace, and those that became constants
    origins          where a number comes from that is no size: a tensor, a draw, a counter
    symbolic_sizes   symbols for the dimensions and strides of a tensor input
    growing_sizes    dimensions that the frame itself changes, such as those of a cache
    varying_sizes    the dimensions that may be symbols, with their ranges
    concrete         substitutes ints or other symbols in a trace with symbolic sizes
"""
