"""Reads and writes the weights of a module in the format of safetensors, an optional package."""

from __future__ import annotations

from safetensors.torch import load_file, save_file

__all__ = ["load_file", "save_file"]
