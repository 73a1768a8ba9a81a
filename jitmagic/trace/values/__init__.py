"""The kinds of values the tracer knows, one small class each; `base.py` has the contract."""
