"""What the tracer knows about callables written in C, by family; `registry.py` has the table."""
