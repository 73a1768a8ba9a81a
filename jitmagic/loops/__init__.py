"""Lowers ATen graphs to loop nests over buffers.

In reading order: ir (the vocabulary), expr (index arithmetic), values and tensor_view (constructors
of values and views), builder, promotion, registry and ops/ (one lowering per op), lower (the stage
itself); verify, interp (the semantics of a program), show and python_form (its two texts), axes.
"""
