"""sandbox: what the user's modes, hooks and observers never see of a compile.

Comes in: nothing; the thread as the user's call or backward left it. Goes out: a context in which
operations are recorded, shaped and tried out, entered by the pipeline and nowhere else. Set aside
are default hooks for saved tensors (checkpointing counts what it packs), torch-function and
torch-dispatch modes (they would log our operations), anomaly mode (it would blame a backward that
the user never ran), the profiler, and torch.compile's evaluator. Invariant: afterwards the thread
has all it had, in its order, also after an exception.

What a result depends on is not set aside but read and guarded: grad mode, autocast, default dtype,
deterministic algorithms. Random numbers are not put back: other threads draw from the same
generator, so a compile draws none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..guards.state import FUNCTION_MODES, SET_ASIDE
from .beside import torch_compile_set_aside

__all__ = ["sandbox"]

_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]
Hooks = tuple[Callable[..., Any], Callable[..., Any]]


@contextmanager
def sandbox() -> Iterator[None]:
    """Nothing of the user's observes this thread inside."""
    dispatch_modes = _disable_current_modes if torch._C._len_torch_dispatch_stack() else nullcontext
    with (
        torch_compile_set_aside(),
        _function_modes_set_aside(),
        dispatch_modes(),
        _hooks_set_aside(),
        _anomaly_mode_set_aside(),
        _profiler_set_aside(),
    ):
        yield


@contextmanager
def _hooks_set_aside() -> Iterator[None]:
    taken: list[Hooks] = []
    while (hooks := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        taken.append(hooks)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(taken):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextmanager
def _function_modes_set_aside() -> Iterator[None]:
    count = torch._C._len_torch_function_stack()
    modes = [torch._C._pop_torch_function_stack() for _ in range(count)]
    before = FUNCTION_MODES.set_aside
    FUNCTION_MODES.set_aside = (*before, *reversed(modes))
    try:
        yield
    finally:
        FUNCTION_MODES.set_aside = before
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


@contextmanager
def _anomaly_mode_set_aside() -> Iterator[None]:
    """The mode is the process's: a backward that another thread begins meanwhile is not checked."""
    if not torch.is_anomaly_enabled():
        yield
        return
    checks_nan = torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    SET_ASIDE.add("anomaly")
    try:
        yield
    finally:
        SET_ASIDE.discard("anomaly")
        torch.set_anomaly_enabled(True, checks_nan)


@contextmanager
def _profiler_set_aside() -> Iterator[None]:
    if not _autograd._profiler_enabled():
        yield
        return
    _autograd._enable_record_function(False)
    try:
        yield
    finally:
        _autograd._enable_record_function(True)
