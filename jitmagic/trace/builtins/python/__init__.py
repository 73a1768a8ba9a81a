"""Builtins and standard-library callables that the tracer models."""
