"""Handlers of the opcodes, by family; `registry.py` has the table."""
