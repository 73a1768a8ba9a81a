"""Loops: ATen graphs as loop nests over buffers.

In reading order: ir (the vocabulary), expr (index arithmetic), values and tensor_view (how values
and views are made), builder, promotion, registry and ops/ (one lowering per op), lower (the stage
itself); verify, interp (what a program means), show and python_form (its two texts), axes.
"""
