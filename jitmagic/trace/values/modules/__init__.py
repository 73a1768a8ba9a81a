"""Modules of torch.nn, their hooks and containers."""
