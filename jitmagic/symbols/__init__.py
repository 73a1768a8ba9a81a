"""Symbolic integers and floats: arithmetic on numbers that are unknown while a program is compiled.

A `Symbol` is such a number: a size of an input, an int or float argument, a number read from a
tensor. Expressions over symbols are interned and in a normal form. A `Context` holds the
assumptions of one trace about its symbols, each of which becomes a guard; it is the counterpart of
torch's ShapeEnv, without sympy. Nothing here depends on tensors or graphs.

    interned           equal nodes are one object
    interval           ranges of values, with one arithmetic for ints and floats
    expr               integer expressions over leaves, in a normal form; addresses of loops
    symbolic_numbers   Symbol, and the results of Python's operators on symbols
    polynomial         products of symbols in the normal form of sizes; expressions as text
    rounding           int(n * 0.75) and the like as integer arithmetic
    narrowing          the ranges to which a Context narrows symbols
    context_facts      what a Context knows, as data
    context            Context: `decide`, `require`; Specialize: a symbol must be a constant
    size               Size: a dimension that computes like an int, unbacked or not
    predicates         conditions under which code compiled at one size is valid
    size_programs      expressions of sizes as a natively evaluated program
    float_programs     comparisons of floats as a program: guards run it
    probe              answers, examples and formulas for what is learnt by trying
"""
