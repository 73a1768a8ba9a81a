"""Defines DispatchMode, the base of jitmagic's torch dispatch modes, and tensors without data.

torch's own base class wraps `__torch_dispatch__` in a function that imports torch._dynamo (1.8 s)
unless the class declares that it need not; this one does.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

from ..compat.modes import PythonDispatcher, TorchDispatchMode
from ..compat.tensors import make_wrapper
from ..torch_types import Kwargs, OpOverload
from .wrappers.wrapping import holds_wrapper

__all__ = ["DispatchMode", "by_python_dispatcher", "dataless"]

T = TypeVar("T", bound=torch.Tensor)


def by_python_dispatcher(chosen: bool) -> AbstractContextManager[object]:
    """Enable torch's Python dispatcher if `chosen`: composite operators are then decomposed in
    Python, so ints that C++ would read may be SymInts.
    """
    return PythonDispatcher() if chosen else nullcontext()


def dataless(
    cls: type[T],
    like: torch.Tensor,
    device: torch.device,
    offset: int | torch.SymInt,
    requires_grad: bool,
) -> T:
    """Return a tensor of class `cls` with the layout of the meta tensor `like`, at `offset`
    elements into its storage, that reports another device.

    Passing the storage size spares torch computing it: for symbolic sizes that takes 50 Python
    calls, 100 us.
    """
    made: T = make_wrapper(  # type: ignore[attr-defined]
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
    """Base class; subclasses define `run_operator`, or torch's own method.

    below_wrappers: whether it gets the calls of wrapper subclasses on their inner tensors, in place
        of those on the wrappers
    """

    below_wrappers = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: Kwargs | None = None,
    ) -> object:
        if self.below_wrappers and holds_wrapper(types):
            return NotImplemented
        return self.run_operator(func, args, kwargs or {})

    def run_operator(self, op: OpOverload, args: tuple[object, ...], kwargs: Kwargs) -> object:
        """Return the result of an ATen call."""
        return op(*args, **kwargs)
