"""Decides for calls that fit no variant whether a compile pays, and when.

Input: the calls of one handle, and of others for equal modules, that were not compiled: their time
and their number of autograd nodes. Output: the `Terms` of the next compile, or None for a call that
runs as eager. What is expected to take less than half a second is compiled at the first call. The
rest runs as eager until what a compile is likely to save in the calls to come is more than it
costs; then it is compiled, on another thread while calls go on if there is a processor for it.
Calls with the very tensors of the call before are a measurement or a warm-up, which waits for
compiled code: they are compiled at once.

Programs of a few seconds are what this is for: a compile that saves nothing in them is felt most.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice, repeat
from types import CodeType
from typing import Any

import torch
from torch import nn

from ... import platforms
from ...compat.autograd import sequence_number
from ...compat.distributed import is_fully_sharded
from ...lazy_dataclass import dataclass, field
from ...options import Options
from ...ranks.decisions import decide, decided, is_shared
from ...records import PendingBuild, Recording
from ...torch_types import Values
from ..agreement.identity import frame_name
from ..original import Original
from .reached_numbers import variables

__all__ = ["AT_ONCE", "PayBack", "Terms", "has_free_processor", "slowness"]

# Seconds of a compile that no call should notice; notebooks and tests see it at the first call.
_UNNOTICED = 0.5
# A training step of so many layers takes longer than that to compile, so it is not even traced.
_MANY_LAYERS = 10
# Seconds of a compile with gradients: `_BASE` and so much for each autograd node of a call. 31
# nodes took 1.4 s, 60 took 2.0 to 5.5 s; a forward without gradients is taken for 1 s.
_BASE, _OF_A_NODE, _OF_INFERENCE = 0.5, 0.025, 1.0
# Compiled code saves what eager's dispatcher takes, and little of the kernels' time. Seconds for a
# node: in a step with its backward and its optimizer, and in a forward with the backward to come.
_SAVED_IN_A_STEP, _SAVED_IN_A_FORWARD = 80e-6, 10e-6
_SAVED_OF_KERNELS, _MOST_SAVED, _SAVED_OF_INFERENCE = 0.05, 0.7, 0.3
_WITH_BACKWARD = 3.0  # times the forward
# Seconds of such calls that are likely to come, besides as many as there were.
_TO_COME = 2.0
_COUNTING = 50e-6  # seconds that `_counting` took on it
_DEPTH, _TENSORS = 3, 64  # of containers, and of what is looked at in each
_UNTIL_STORED = 3  # calls from the end of a compile until it is found on disk
_SEVERAL = 4  # kinds of calls: sizes vary, and all of them count together


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a compile.

    affordable: seconds that it may be expected to take; 0: it is only looked for on disk
    leaves_thread: what follows the trace runs on another thread
    notes_numbers: if the trace reads numbers that were not noted before (`reached_numbers`), the
        next call is compiled in place of this one: those that a scheduler changes become inputs
    """

    affordable: float = float("inf")
    leaves_thread: bool = False
    notes_numbers: bool = False

    def write_to(self, recording: Recording) -> None:
        """Pass the terms on to the stages."""
        recording.affordable, recording.leaves_thread = self.affordable, self.leaves_thread
        recording.notes_numbers = self.notes_numbers


AT_ONCE = Terms()
_UNNOTICEABLY = Terms(affordable=_UNNOTICED)
_ONLY_STORED = Terms(affordable=0.0)  # what an earlier process compiled, or nothing
_Kind = tuple[Any, ...]


@dataclass(eq=False, slots=True)
class _Evidence:
    """The eager calls of one kind, without the first, which warms up."""

    is_warm: bool = False
    calls: int = 0
    seconds: float = 0.0
    nodes: int = 0  # of autograd, in the last call
    has_backward: bool = False  # the result is still to be differentiated

    def add(self, seconds: float, nodes: int, has_backward: bool) -> None:
        """Count a call."""
        if self.is_warm:
            self.calls += 1
            self.seconds += seconds * (_WITH_BACKWARD if has_backward else 1.0)
            self.nodes, self.has_backward = nodes, has_backward
        self.is_warm = True

    @property
    def pays(self) -> bool:
        """Return whether a compile is likely to save more than it takes."""
        if not self.calls:
            return False
        cost, share = _OF_INFERENCE, _SAVED_OF_INFERENCE
        if self.nodes:
            cost = _BASE + _OF_A_NODE * self.nodes
            saved = _SAVED_IN_A_FORWARD if self.has_backward else _SAVED_IN_A_STEP
            of_dispatch = saved * self.nodes * self.calls / max(self.seconds, 1e-9)
            share = min(_MOST_SAVED, _SAVED_OF_KERNELS + of_dispatch)
        return (self.seconds + _TO_COME) * share >= cost


@dataclass(eq=False)
class _Shared:
    """The evidence of handles of one code object for modules of one structure: equal layers.

    What one of them compiles takes others little: of 12 blocks of a GPT, tagged one by one, the
    first took 1.2 s and each of the others 9 ms, and 400 steps in which each counted alone ran as
    eager (4.6 s; 2.8 s with the compiles).
    """

    is_costly: bool = False
    kinds: dict[_Kind, _Evidence] = field(default_factory=dict)
    building: PendingBuild | None = None  # of the first that compiles


_Structure = tuple[tuple[type[nn.Module], tuple[torch.Size | None, ...]], ...]
_shared: weakref.WeakValueDictionary[tuple[CodeType, _Structure], _Shared]
_shared = weakref.WeakValueDictionary()


@dataclass(eq=False)
class PayBack:
    """Holds the evidence of one handle: its calls that were not compiled, and until its first
    compile those of handles of equal layers.
    """

    is_costly: bool = False  # a compile of it was expected to be noticed
    is_wanted: bool = False  # the user waits for compiled code
    has_noted: bool = False  # a trace has noted the numbers that it read
    _evidence: _Shared = field(default_factory=_Shared)
    _has_joined: bool = False  # equal layers, if there are any
    _own_calls: Counter[_Kind] = field(default_factory=Counter)
    _waited: int = 0  # calls since another handle's compile was done
    _before: tuple[weakref.ref[torch.Tensor], ...] = ()
    _compiles: int = 0  # that have begun

    def terms(self, values: Values, original: Original, options: Options) -> Terms | None:
        """Return how a call that fits no variant is compiled; None: it runs as eager."""
        if not _is_left_to_choice(options) or self.is_wanted or self._is_repeated(values):
            return AT_ONCE
        if not self._has_joined:
            self._evidence, self._has_joined = _evidence_of(values, original), True
        is_costly = self.is_costly or self._evidence.is_costly
        if not is_costly and not _is_large(values, original):
            return _UNNOTICEABLY
        self.is_costly = True
        if not self._pays_on_a_rank(values, original):
            return _ONLY_STORED if self._is_new(values) else None
        if self._waits_for_another():
            return None
        leaves = has_free_processor(values)
        return Terms(leaves_thread=leaves, notes_numbers=not self.has_noted)

    def postpone(self, terms: Terms) -> None:
        """Count the calls from now on: a compile on these terms was put off."""
        self.is_costly = self._evidence.is_costly = True
        self.has_noted |= terms.notes_numbers

    def run(self, run: Callable[[], object], values: Values) -> object:
        """Run a call as eager and count it."""
        if not self.is_costly:
            return run()
        kind = _kind(values)
        evidence = self._evidence.kinds.setdefault(kind, _Evidence())
        self._own_calls[kind] += 1
        self._before = tuple(map(weakref.ref, _tensors(values)))
        nodes, begun = sequence_number(), time.thread_time()
        result = run()
        # Time of this thread: waiting for data, or for a processor that others use, is not saved.
        seconds = time.thread_time() - begun
        nodes = sequence_number() - nodes if torch.is_grad_enabled() else 0
        evidence.add(seconds / slowness(), nodes, nodes > 0 and _requires_grad(result))
        return result

    def forget(self, result: object) -> None:
        """Start over: a compile has begun, or has ended with this result."""
        self._compiles += 1
        if isinstance(result, PendingBuild):
            self._evidence.building = result
        self._evidence = _Shared()
        self._own_calls.clear()
        self._before, self.is_wanted, self.has_noted = (), False, False

    def _waits_for_another(self) -> bool:
        """Return whether what another handle compiles will soon be found on disk, where it is
        written when its backward has run.
        """
        building = self._evidence.building
        if building is None or self._waited >= _UNTIL_STORED:
            return False
        self._waited += building.wait(0)
        return True

    def _is_repeated(self, values: Values) -> bool:
        """Return whether the call has the same tensors as the one before."""
        before = [ref() for ref in self._before]
        tensors = list(_tensors(values))
        return bool(before) and len(before) == len(tensors) and all(map(_same, before, tensors))

    def _is_new(self, values: Values) -> bool:
        """Return whether it is one of the first two calls of its kind: after the first one, an
        optimizer has its state.
        """
        return self._own_calls[_kind(values)] < 2

    def _pays_on_a_rank(self, values: Values, original: Original) -> bool:
        """Return whether a compile pays, here or, in a distributed program, on any rank: each
        would wait for the others while they compile.
        """
        pays = self._pays(values)
        if is_shared():
            subject = f"pays {frame_name(original)} {self._compiles}"
            return decide(subject, "yes") is not None if pays else decided(subject) is not None
        return pays

    def _pays(self, values: Values) -> bool:
        kind = _kind(values)
        kinds = self._evidence.kinds
        alike = [one for known, one in kinds.items() if known[0] == kind[0]]
        if len(alike) > _SEVERAL:
            whole = max(alike, key=lambda one: one.calls)
            calls, seconds = sum(one.calls for one in alike), sum(one.seconds for one in alike)
            return _Evidence(True, calls, seconds, whole.nodes, whole.has_backward).pays
        return kind in kinds and kinds[kind].pays


def _evidence_of(values: Values, original: Original) -> _Shared:
    """Return what handles of equal layers share; new evidence for a call without modules."""
    tagged = (value for value in values if isinstance(value, nn.Module))
    modules = (module for value in tagged for module in value.modules())
    structure = tuple((type(one), tuple(map(_shape, one._parameters.values()))) for one in modules)
    return _shared.setdefault((original.code, structure), _Shared()) if structure else _Shared()


def _shape(parameter: torch.Tensor | None) -> torch.Size | None:
    return None if parameter is None else parameter.shape


@cache
def slowness() -> float:
    """Return how many times as long as the machine of the figures above this one takes."""
    return max(1.0, min(_counting() for _ in repeat(None, 5)) / _COUNTING)


def _counting() -> float:
    begun = time.thread_time()
    for _ in repeat(None, 2000):
        hash(None)
    return time.thread_time() - begun


def _is_left_to_choice(options: Options) -> bool:
    """Return whether the options ask for nothing that only an immediate compile gives."""
    return (
        options.background == "auto"
        and options.backend == "native"
        and options.keep == "faster"
        and options.mode == "default"
        and options.on_error == "eager"
        and not (options.fullgraph or options.cuda_graphs or options.freeze)
    )


def has_free_processor(values: Values) -> bool:
    """Return whether another thread can work while calls go on.

    The threads of an operation wait for each other. If each has a processor and one more thread
    works, all of them wait for the one that shares: 750 steps that took 6.3 s took 12.0 s beside a
    compile of 2.4 s, on 2 processors. A GPU's operations have no such threads.
    """
    on_gpu = any(tensor.device.type != "cpu" for tensor in _tensors(values))
    return on_gpu or torch.get_num_threads() < platforms.usable_processors()


def _is_large(values: Values, original: Original) -> bool:
    """Return whether a training call reaches a model of many layers: by an argument, a variable of
    an enclosing function or a global one.
    """
    if not torch.is_grad_enabled():
        return False
    held = (value for _, value in variables(original.snapshot(values)))
    return any(isinstance(one, nn.Module) and _has_many_layers(one) for one in held)


def _has_many_layers(module: nn.Module) -> bool:
    layers = 0
    for one in _compiled_together(module):
        if isinstance(one, nn.RNNBase):
            return True  # as many as there are time steps
        layers += not one._modules and bool(one._parameters)
        if layers > _MANY_LAYERS:
            return True
    return False


def _compiled_together(module: nn.Module) -> Iterator[nn.Module]:
    """Return the modules that one graph may contain.

    The hooks of FSDP2 break the graph at each call of a module that `fully_shard` got. Its forward
    is a frame that decides for itself: 6 blocks of a GPT, compiled once, were taken for a compile
    of 4 s, and 400 steps ran as eager.
    """
    yield module
    for child in module.children():
        if not is_fully_sharded(child):
            yield from _compiled_together(child)


def _kind(values: Values) -> _Kind:
    """Return what calls of one variant have in common: the grad mode, and the sizes of tensors."""
    return torch.is_grad_enabled(), *(tensor.shape for tensor in _tensors(values))


def _tensors(values: Values) -> Iterator[torch.Tensor]:
    """Return the tensors of a call, also those of `*args`, `**kwargs` and of a batch in a dict."""
    return islice(_nested(values, _DEPTH), _TENSORS)


def _nested(values: Iterable[object], depth: int) -> Iterator[torch.Tensor]:
    for value in islice(values, _TENSORS):
        if type(value) is torch.Tensor:
            yield value
        elif depth and isinstance(value, (tuple, list)):
            yield from _nested(value, depth - 1)
        elif depth and isinstance(value, dict):
            yield from _nested(dict.values(value), depth - 1)


def _same(first: object, second: object) -> bool:
    return first is second


def _requires_grad(result: object) -> bool:
    parts = result.values() if isinstance(result, dict) else result
    parts = parts if isinstance(parts, (tuple, list)) else (parts,)
    return any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts)
