"""Checks of jitmagic.bytecode that run on any Python, without torch and without pytest.

Every module has CHECKS, a dict of name -> function that raises on failure.
`python -m bytecode_checks` runs them all; tests/bytecode/test_every_python.py does that on each
interpreter it finds.
"""
