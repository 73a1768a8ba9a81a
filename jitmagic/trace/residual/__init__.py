"""Turns a finished trace into the bytecode that runs in place of the frame."""
