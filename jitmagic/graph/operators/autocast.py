"""Applies autocast to the calls of a graph under construction.

Input: a call, its meta tensors with their real devices, and an `Autocast` (the dtype that each
device casts to). Output: None if the casts change nothing, else the call's results as fresh meta
tensors. torch itself decides which operations are cast, inside composites too. The call runs twice,
with autocast on and off, on tensors that report their real device and hold meta tensors; the ATen
calls that arrive are compared. The thread's autocast mode is always restored.

Eager caches the cast of a leaf until the outermost block ends, keyed by the leaf alone. A graph
casts anew; if that would give another result (another dtype, a write in between), StaleCast is
raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...compat.modes import ignore_torch_function
from ...errors import UserLine
from ...late import late_names
from ...lazy_dataclass import dataclass, field
from ...operators.operation import takes_device
from ...torch_types import Kwargs, OpOverload
from ..autocast_mode import OFF, Autocast, autocast_as, read_autocast
from ..dispatch_mode import DispatchMode, dataless
from ..linked_history import link_history
from ..memory import storage_under
from ..nested import frozen, map_leaves, map_tensors
from ..node_meta import tensors_in
from ..propagate import EagerRaises, call_on_meta, is_view_in_place
from ..target_names import Target
from ..wrappers.wrapping import Layout, inner_tensors, is_wrapper, sizes_of_wrapper
from .kernel_refusals import check_dtypes
from .strictness import check_as_kernels_do

if TYPE_CHECKING:
    from .symbolic_shapes import shapes_by_sampling
else:
    late_names(globals(), {"graph.operators.symbolic_shapes": "shapes_by_sampling"})

__all__ = [
    "CastCache",
    "StaleCast",
    "cast_result",
]

META = torch.device("meta")
_OF_AN_OLD_VALUE = -1  # equals no version counter


class StaleCast(Exception):
    """Raised if eager would use a cast of a leaf made earlier in the block that is out of date."""


class CastCache:
    """Models eager's autocast cache: the (dtype, version of the leaf) of each cached cast."""

    def __init__(self) -> None:
        self.enabled = torch.is_autocast_cache_enabled()
        # The mode of an autocast block around the frame, which may have cast any leaf already.
        self._around = read_autocast()
        self._by_leaf: dict[int, tuple[torch.dtype, int]] = {}  # by id of the meta tensor
        self._in_memory: dict[int, tuple[torch.Tensor, str]] = {}  # storage -> (leaf, device type)
        self._with_history: set[int] = set()  # ids of leaves that were cast in grad mode
        self._outliving: set[int] = set()

    def clear(self) -> None:
        """Empty the cache, as eager does when the outermost block ends."""
        self._around = OFF
        self._by_leaf.clear()
        self._in_memory.clear()
        self._outliving.clear()

    def note_all(
        self,
        mode: Autocast,
        tensors: Iterable[torch.Tensor],
        device_of: Callable[[torch.Tensor], torch.device],
        grad: bool,
    ) -> None:
        """Record that a call under `mode` casts these tensors; raises StaleCast, see `_note`."""
        for tensor in tensors:
            device = device_of(tensor).type
            if (dtype := mode.dtype_on(device)) is not None:
                self._note(tensor, device, dtype, grad)

    def _note(self, tensor: torch.Tensor, device: str, dtype: torch.dtype, grad: bool) -> None:
        """Record a cast; raises StaleCast if eager has cached another cast of the leaf."""
        kept = tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf
        if not (kept and self.enabled) or tensor._is_view():
            return
        before = self._around.dtype_on(device) or dtype
        if grad and id(tensor) not in self._by_leaf:
            self._with_history.add(id(tensor))
        made = self._by_leaf.setdefault(id(tensor), (before, tensor._version))
        self._in_memory[storage_under(tensor)] = tensor, device
        if made != (dtype, tensor._version):
            raise StaleCast(
                f"a cast to {made[0]}" if made[0] is not dtype else "a cast of an older value"
            )

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether eager has cached a cast of the tensor."""
        return id(tensor) in self._by_leaf

    def note_written(
        self, tensors: Iterable[torch.Tensor], is_input: Callable[[torch.Tensor], bool]
    ) -> None:
        """Record writes to these tensors, including those past the version counter (`.data`).

        If the autocast block continues after the frame, eager's cached cast of an input has to be
        put into the real cache (`outlives_frame`); raises StaleCast where that is impossible.
        """
        for leaf, device in self._cast_in_memory_of(tensors):
            if self._around.dtype_on(device) is not None:
                if not (leaf.dim() and id(leaf) in self._with_history and is_input(leaf)):
                    raise StaleCast(
                        "the leaf is written to inside an autocast block that outlives the call"
                    )
                self._outliving.add(id(leaf))
            self._by_leaf[id(leaf)] = self._by_leaf[id(leaf)][0], _OF_AN_OLD_VALUE

    def outlives_frame(self, tensor: torch.Tensor) -> bool:
        """Return whether eager's cache holds a cast of the leaf after the frame, which has written
        to it.
        """
        return id(tensor) in self._outliving

    def _cast_in_memory_of(
        self, tensors: Iterable[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, str]]:
        if self._in_memory:
            for tensor in tensors:
                if (cast := self._in_memory.get(storage_under(tensor))) is not None:
                    yield cast


# -- tensors that report a real device and hold a meta tensor --------------------------------------


class _DeviceTensor(torch.Tensor):
    """A meta tensor that C++ sees as the real one: its device, dtype, layout and requires_grad."""

    held: torch.Tensor

    __torch_function__ = ignore_torch_function  # type: ignore[assignment]

    @staticmethod
    def make(held: torch.Tensor, device: torch.device, requires_grad: bool) -> _DeviceTensor:
        shown = dataless(_DeviceTensor, held, device, int(held.storage_offset()), requires_grad)
        shown.held = held
        return shown

    @classmethod
    def __torch_dispatch__(cls, func: object, *rest: object) -> NoReturn:  # type: ignore[override]
        raise EagerRaises(RuntimeError(f"{func} met a tensor of the trace outside the trace"))


@dataclass(slots=True)
class _RecordedRun:
    """One run: the ATen calls that arrived below autocast, its result or error."""

    calls: list[Hashable] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    result: Any = None
    error: Exception | None = None


class _IgnoreWrites(DispatchMode):
    """Answers in-place calls without executing them; autograd records them all the same."""

    def run_operator(self, op: OpOverload, args: tuple[object, ...], kwargs: Kwargs) -> object:
        return args[0]


def _shown_on(value: torch.Tensor, device: torch.device, inside: bool) -> torch.Tensor:
    """Return a tensor on `device` without history. A wrapper is rebuilt around such tensors if they
    are shown `inside`.
    """
    if not is_wrapper(value):
        return _DeviceTensor.make(value.data, device, False)
    if not inside:
        return _DeviceTensor.make(
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META),
            device,
            False,
        )
    layout = Layout.of(value)
    inner = [_shown_on(part, device, inside) for part in layout.inner(value)]
    return layout.around(inner, *sizes_of_wrapper(value)).requires_grad_(False)


def _shown_like(value: torch.Tensor, device: torch.device, inside: bool) -> torch.Tensor:
    """Return a tensor on `device` that is a leaf of the autograd graph iff `value` is one."""
    shown = _shown_on(value, device, inside)
    if value.is_leaf:
        return shown.requires_grad_(value.requires_grad)
    leaf = torch.empty((), device=META, requires_grad=True)
    with torch.enable_grad(), _IgnoreWrites():
        shown.add_(leaf)
    return shown


class _CallRecorder(DispatchMode):
    """Runs every ATen call on the held meta tensors and records it."""

    below_wrappers = True

    def __init__(self, seen: _RecordedRun) -> None:
        super().__init__()
        self.seen = seen

    def run_operator(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> object:
        named = dict(kwargs)
        shown = [t for t in tensors_in((args, named)) if isinstance(t, _DeviceTensor)]
        placed = (each for each in args if isinstance(each, torch.device))  # of aten.to.device
        asked = next(placed, named.get("device"))
        device = torch.device(asked) if asked is not None else _device_of(shown)
        if named.get("device") is not None or (not shown and takes_device(op)):
            named["device"] = META
        positional, named = map_leaves((args, dict(sorted(named.items()))), _held)
        self.seen.calls.append((op, frozen((positional, named), _described)))
        check_as_kernels_do(op._opname, positional, named, (), device)
        check_dtypes(op, op._opname, positional, named, device)
        owners = {id(t.held): t for t in shown}

        def show(made: torch.Tensor) -> _DeviceTensor:
            known = owners.get(id(made))
            return _DeviceTensor.make(made, device, False) if known is None else known

        return map_tensors(op(*positional, **named), show)


def _device_of(shown: list[_DeviceTensor]) -> torch.device:
    sized = [t for t in shown if t.dim()] or shown
    return sized[0].device if sized else torch.device("cpu")


def _held(value: object) -> object:
    if isinstance(value, _DeviceTensor):
        return value.held
    if isinstance(value, torch.device):
        return META
    if isinstance(value, torch.Tensor):  # numbers in tensors stay: they promote as numbers
        return value.to(META) if value.dim() and not value.is_meta else value
    return value


def _described(value: object) -> Hashable:
    """Return the properties of a tensor by which two runs are compared."""
    if not isinstance(value, torch.Tensor):
        return None
    return "tensor", value.dtype, tuple(value.shape)


# -- the result of a call --------------------------------------------------------------------------


def cast_result(
    mode: Autocast,
    kept: CastCache,
    target: Target,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    device_of: Callable[[torch.Tensor], torch.device],
    grad: bool,
    line: UserLine | None = None,
) -> object:
    """Return the call's results under `mode`, as new meta tensors; None if casts change nothing.

    Raises what the call raises, StaleCast, and EagerRaises if casts make results share memory.
    """
    tensors = [t for t in tensors_in((args, kwargs)) if t.is_floating_point()]
    if not any(mode.dtype_on(device_of(t).type) for t in tensors) or is_view_in_place(target):
        return None
    # Plain tensors in place of wrappers tell whether these are cast. The wrappers' own code runs
    # once: the mask of a divided embedding is kept from there to the reduction after it.
    is_wrapped = any(map(is_wrapper, tensors))
    line_of_first = None if is_wrapped else line
    on = _watch(mode, target, args, kwargs, device_of, grad, line_of_first)
    if on.error is not None:
        if is_wrapped:  # sampled tensors are plain
            raise on.error
        sampled = _sampled_cast(mode, target, (args, kwargs), device_of, grad, on.error)
        if sampled is not None:
            kept.note_all(mode, tensors, device_of, grad)
        return sampled
    # Without a line: the first run has issued the warnings.
    off = _watch(OFF, target, args, kwargs, device_of, grad, None)
    if off.error is None and on.calls == off.calls:
        return None
    if is_wrapped:
        on = _watch(mode, target, args, kwargs, device_of, grad, line, inside=True)
        if on.error is not None:
            raise on.error
    kept.note_all(mode, tensors, device_of, grad)
    inputs = list(tensors_in((args, kwargs)))
    results = list(tensors_in(on.result))
    _check_fresh(results, inputs, on.written)
    with_history = iter(link_history(results, inputs))
    return map_tensors(on.result, lambda _: next(with_history))


def _sampled_cast(
    mode: Autocast,
    target: Target,
    arguments: tuple[tuple[object, ...], dict[str, object]],
    device_of: Callable[[torch.Tensor], torch.device],
    grad: bool,
    error: Exception,
) -> object:
    """Sample the cast results of a call that fails on symbolic sizes, at several sizes.

    Raises `error` if sampling fails too.
    """
    devices = [device_of(tensor) for tensor in tensors_in(arguments)]
    is_cast = True

    def run(given: Any) -> tuple[Any, Collection[int]]:
        nonlocal is_cast
        known = {id(t): d for t, d in zip(tensors_in(given), devices, strict=True)}
        args, kwargs = given
        cache = CastCache()  # a new one: the sampled leaves are new
        made = cast_result(
            mode, cache, target, args, kwargs, lambda tensor: known[id(tensor)], grad
        )
        is_cast = made is not None
        if not is_cast:
            raise error
        return made, ()

    made = shapes_by_sampling(run, arguments)
    if made is None and is_cast:
        raise error
    return made


def _watch(
    mode: Autocast,
    target: Target,
    args: tuple[Any, ...],
    kwargs: dict[str, object],
    device_of: Callable[[torch.Tensor], torch.device],
    grad: bool,
    line: UserLine | None,
    inside: bool = False,
) -> _RecordedRun:
    """Run the call under `mode` on fresh tensors and record its ATen calls. Wrappers are plain
    tensors in it if those `inside` of them are not asked for.
    """
    seen = _RecordedRun()
    shown: dict[int, torch.Tensor] = {}

    def show(value: object) -> object:
        if isinstance(value, torch.Tensor):
            if id(value) not in shown:
                shown[id(value)] = _shown_like(value, device_of(value), inside)
            return shown[id(value)]
        return value

    try:
        with torch.inference_mode(False), autocast_as(mode):
            positional, named = map_leaves((args, kwargs), show)
            recorder = _CallRecorder(seen)
            seen.result = call_on_meta(
                target, positional, named, grad, seen.written, recorder, line
            )
    except Exception as error:  # the caller decides: eager may raise the same
        seen.error = error
    return seen


def _check_fresh(
    results: list[torch.Tensor], inputs: list[torch.Tensor], written: set[int]
) -> None:
    taken = {storage_under(part) for tensor in inputs for part in inner_tensors(tensor)}
    if not written.isdisjoint(taken):
        raise EagerRaises(RuntimeError("it writes in place under autocast"))
    for result in (part for tensor in results for part in inner_tensors(tensor)):
        if not isinstance(result, _DeviceTensor):
            raise EagerRaises(RuntimeError("it makes a tensor from Python data under autocast"))
        storage = storage_under(result.held)
        if storage in taken or result.storage_offset():
            raise EagerRaises(RuntimeError("its results share memory under autocast"))
        taken.add(storage)
