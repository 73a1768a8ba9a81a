"""Compiles a frame: `pipeline` has the order of the stages, the other modules a step each."""
