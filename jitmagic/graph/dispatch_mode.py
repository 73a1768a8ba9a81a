"""DispatchMode: the base of our torch dispatch modes; making one imports nothing.

torch's own base class wraps `__torch_dispatch__` in a function that imports torch._dynamo (1.8 s)
unless the class says that there is no need.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DispatchMode"]


class DispatchMode(TorchDispatchMode):
    """Subclasses define `__torch_dispatch__(self, func, types, args=(), kwargs=None)`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
