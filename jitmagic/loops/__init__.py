"""Lowers ATen graphs to loop nests over buffers.

In reading order: ir (the classes of the IR), expr (index arithmetic), values and tensor_view
(constructors of values and views), builder, promotion, registry and ops/ (one lowering per op), and
lower (the stage itself). interp defines what a program computes, verify checks the rules of the IR,
show prints a program for people, and python_form as Python text that reads back. sizes substitutes
numbers for symbolic sizes; free_axes, cpu_scalars, libraries and vector_tails are analyses;
philox_state is an operator.
"""
