"""Processes that a test started, asked whether they have ended."""

from __future__ import annotations

import time

__all__ = ["is_alive"]


def is_alive(pid: int) -> bool:
    """Return whether it is still alive; a killed grandchild takes a moment to end."""
    for _ in range(1000):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.01)
    return True
