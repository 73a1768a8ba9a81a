"""Containers and iterators: a Python type over a store of contents."""
