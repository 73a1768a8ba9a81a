"""Hides a compile from the user's modes, hooks and observers.

Input: the thread as the user's call or backward left it. Output: a context manager, entered where a
compile begins, inside which torch operations run unobserved. Disabled inside: default hooks for
saved tensors (checkpointing counts what it packs); torch-function and torch-dispatch modes,
transforms of torch.func, and `__torch_function__` of tensor subclasses (they would see jitmagic's
operations); anomaly mode (it
would blame a backward that the user never ran); the profiler; recording by jitmagic.lazy();
torch.compile's evaluator; the garbage collector, which would run finalizers.
Invariant: afterwards the thread has all of these in their order, also after an exception and
wherever Ctrl-C struck.

State that a result depends on is not disabled but read and guarded: grad mode, autocast, default
dtype, deterministic algorithms. Random generators are not restored, since other threads draw from
the same one; a compile draws no random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from ..compat.autograd import (
    disable_saved_hooks,
    enable_record_function,
    enable_saved_hooks,
    is_profiler_enabled,
    pop_saved_hooks,
    push_saved_hooks,
    saved_hooks_refusal,
    top_saved_hooks,
)
from ..compat.modes import (
    TorchFunctionOfSubclassesOff,
    dispatch_mode_at,
    dispatch_mode_depth,
    function_mode_at,
    function_mode_depth,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
    recording_off,
    switch_grad_mode,
    without_dispatch_modes,
)
from ..compat.tensors import pop_transform, push_transform, transform_of_thread
from ..guards.state import DISABLED_MODES, FUNCTION_MODES, torch_functions_of_subclasses
from ..late import collector_paused
from .torch_compile_boundary import torch_compile_disabled

__all__ = ["SWITCHES", "sandbox"]

Hooks = tuple[Callable[..., Any], Callable[..., Any]]


@contextmanager
def sandbox(*, whole: bool = True) -> Iterator[None]:
    """Hide this thread from the user's observers inside the block. With `whole=False` only what is
    this thread's own is disabled: others run user code meanwhile.
    """
    dispatch_modes = without_dispatch_modes if dispatch_mode_depth() else nullcontext
    with (
        _process_wide_disabled() if whole else nullcontext(),
        _restored(),
        torch_compile_disabled(),
        _transforms_disabled(),
        _function_modes_disabled(),
        _subclasses_disabled(),
        dispatch_modes(),
        _hooks_disabled(),
        recording_off(),
    ):
        yield


@contextmanager
def _process_wide_disabled() -> Iterator[None]:
    with collector_paused(), _anomaly_mode_disabled(), _profiler_disabled():
        yield


class _Stack(NamedTuple):
    """The mode stack of one kind in this thread."""

    length: Callable[[], int]
    at: Callable[[int], Any]
    pop: Callable[[Any], object]
    push: Callable[[Any], None]

    def modes(self) -> list[Any]:
        return [self.at(place) for place in range(self.length())]

    def become(self, wanted: list[Any]) -> None:
        same = 0
        for now, before in zip(self.modes(), wanted, strict=False):
            if now is not before:
                break
            same += 1
        while (count := self.length()) > same:
            self.pop(self.at(count - 1))
        for mode in wanted[same:]:
            self.push(mode)


_STACKS = (
    _Stack(
        dispatch_mode_depth,
        dispatch_mode_at,
        lambda mode: pop_dispatch_mode(getattr(mode, "_mode_key", None)),
        push_dispatch_mode,
    ),
    _Stack(
        function_mode_depth,
        function_mode_at,
        lambda mode: pop_function_mode(),
        push_function_mode,
    ),
)
SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, switch_grad_mode),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    *(
        (partial(read, device), partial(write, device))
        for device in ("cpu", "cuda")
        for read, write in (
            (torch.is_autocast_enabled, torch.set_autocast_enabled),
            (torch.get_autocast_dtype, torch.set_autocast_dtype),
        )
    ),
)


@contextmanager
def _restored() -> Iterator[None]:
    """Restore mode stacks and switches at the end of the block.

    Modes of torch and jitmagic are Python code, so Ctrl-C can strike when a mode is on but its
    `with` has not begun, or in the middle of its exit. Nothing else would restore the state then.
    """
    stacks = [stack.modes() for stack in _STACKS]
    switches = [read() for read, _ in SWITCHES]
    disabled = FUNCTION_MODES.disabled
    try:
        yield
    finally:
        FUNCTION_MODES.disabled = disabled
        for stack, modes in zip(_STACKS, stacks, strict=True):
            stack.become(modes)
        for (read, write), before in zip(SWITCHES, switches, strict=True):
            if read() != before:
                write(before)


@contextmanager
def _hooks_disabled() -> Iterator[None]:
    taken: list[Hooks] = []
    refused = saved_hooks_refusal()
    try:
        if refused is not None:  # the compile itself uses hooks
            enable_saved_hooks()
        while (hooks := top_saved_hooks(True)) is not None:
            taken.append(hooks)
            pop_saved_hooks()
        yield
    finally:
        for pack, unpack in reversed(taken):
            push_saved_hooks(pack, unpack)
        if refused is not None:
            disable_saved_hooks(refused, False)


@contextmanager
def _function_modes_disabled() -> Iterator[None]:
    count = function_mode_depth()
    modes = [pop_function_mode() for _ in range(count)]
    before = FUNCTION_MODES.disabled
    FUNCTION_MODES.disabled = (*before, *reversed(modes))
    try:
        yield
    finally:
        FUNCTION_MODES.disabled = before
        for mode in reversed(modes):
            push_function_mode(mode)


@contextmanager
def _transforms_disabled() -> Iterator[None]:
    before, levels = FUNCTION_MODES.transformed, list[Any]()
    try:
        while transform_of_thread() is not None:
            levels.append(pop_transform())
        FUNCTION_MODES.transformed = before or bool(levels)
        yield
    finally:
        FUNCTION_MODES.transformed = before
        while levels:
            push_transform(levels.pop())


@contextmanager
def _subclasses_disabled() -> Iterator[None]:
    before = FUNCTION_MODES.of_subclasses
    FUNCTION_MODES.of_subclasses = torch_functions_of_subclasses()
    try:
        with TorchFunctionOfSubclassesOff():
            yield
    finally:
        FUNCTION_MODES.of_subclasses = before


@contextmanager
def _anomaly_mode_disabled() -> Iterator[None]:
    """Switch anomaly mode off; it is global, so backwards of other threads lose it too."""
    if not torch.is_anomaly_enabled():
        yield
        return
    checks_nan = torch.is_anomaly_check_nan_enabled()
    try:
        torch.set_anomaly_enabled(False)
        DISABLED_MODES.add("anomaly")
        yield
    finally:
        DISABLED_MODES.discard("anomaly")
        torch.set_anomaly_enabled(True, checks_nan)


@contextmanager
def _profiler_disabled() -> Iterator[None]:
    if not is_profiler_enabled():
        yield
        return
    try:
        enable_record_function(False)
        yield
    finally:
        enable_record_function(True)
