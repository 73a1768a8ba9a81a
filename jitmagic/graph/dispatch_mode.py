"""What our traces are made of: DispatchMode, the base of our torch dispatch modes, and tensors
without data that such a mode sees.

Making a mode imports nothing: torch's own base class wraps `__torch_dispatch__` in a function that
imports torch._dynamo (1.8 s) unless the class says that there is no need.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DispatchMode", "by_python_dispatcher", "dataless"]

T = TypeVar("T", bound=torch.Tensor)


def by_python_dispatcher(chosen: bool) -> AbstractContextManager[Any]:
    """In here torch takes operations apart in Python, if chosen: what its C++ reads as an int may
    be a SymInt.
    """
    return torch._C._EnablePythonDispatcher() if chosen else nullcontext()


def dataless(
    cls: type[T],
    like: torch.Tensor,
    device: torch.device,
    offset: int | torch.SymInt,
    requires_grad: bool,
) -> T:
    """A tensor of class `cls` that lies as the meta tensor `like`, `offset` elements into its
    storage, and reports another device.

    Told how large the storage is, torch does not compute it: of symbolic sizes that takes 50 calls
    of Python, 100 us.
    """
    made: T = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        cls,
        like.shape,
        strides=like.stride(),
        storage_offset=offset,
        dtype=like.dtype,
        device=device,
        requires_grad=requires_grad,
        storage_size=like.untyped_storage().nbytes(),
    )
    return made


class DispatchMode(TorchDispatchMode):
    """Subclasses define `__torch_dispatch__(self, func, types, args=(), kwargs=None)`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
