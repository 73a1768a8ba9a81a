"""Writes the kernels of flex_attention. `kernel` describes them for any renderer."""
