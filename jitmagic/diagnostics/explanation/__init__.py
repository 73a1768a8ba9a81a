"""Finds, arranges and renders what `explain` shows."""
