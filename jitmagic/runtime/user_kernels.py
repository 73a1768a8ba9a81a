"""Describes launches of user-written Triton kernels, so that the native runtime can repeat them.

Input: the operator of a launch (graph/triton/launches.py). Output: for extensions/runtime/
user_kernels.cpp, a function that launches through Triton and returns what it launched: the kernel
of that specialisation, loaded like a generated one, and where each argument comes from. It returns
None for a launch that needs Triton each time: descriptors, hooks, clusters, scratch memory,
heuristics that read addresses or data. Tuning and heuristics have run by then.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from ..errors import ToolchainError
from ..graph.triton.launches import Const, Items, Launch, Number, Origin, Tensor, launch_of, layers
from ..graph.triton.writes import function_of
from .cuda_driver import load_function
from .triton_kernels import import_triton, read_cubin

__all__ = ["native_launches"]

_KINDS = ("JITFunction", "Autotuner", "Heuristics")
_MOST_POINTERS = 64  # a bit of a word for the alignment of each
_MOST_SHARED = 228 << 10  # bytes of shared memory that need no attribute of the launch
_INTS = ("i32", "i64", "u32", "u64")
_FLOATS = {"fp32": "float", "f32": "float", "fp64": "double"}
_CONSTANT_INTS = ("i1", "u1", "i8", "u8", "i16", "u16", *_INTS)
# Facts of Triton's compiled kernels, with the value that needs no attribute of the launch.
_ORDINARY = {
    "num_ctas": 1,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
    "profile_scratch_size": 0,
}
_Parameter = tuple[str, int]


class _NeedsTriton(Exception):
    """Raised for a launch that the native runtime cannot repeat."""


def native_launches(target: object) -> tuple[object, ...] | None:
    """Return (launch, exact, hooks, pointers) of an operator that launches a kernel, or None.

    exact: tuning or heuristics read the values of numbers; else only their specialisation matters
    hooks: lists of functions that Triton calls at a launch
    pointers: (slot, rank, start) of each `Tensor` among the arguments; the rank is -1 for no view
    """
    launch = launch_of(target)
    if launch is None:
        return None
    hooks = _hooks(launch)
    pointers = tuple(dict.fromkeys(_tensors_in([one.origin for one in launch.parameters])))
    if hooks is None or not _is_ordinary(launch) or len(pointers) > _MOST_POINTERS:
        return None
    is_exact = any(_is_heuristic(one) or len(_configs(one)) > 1 for one in layers(launch.kernel))
    places = tuple((one.slot, -1 if one.rank is None else one.rank, one.start) for one in pointers)
    return _Launcher(launch, pointers), is_exact, hooks, places


def _hooks(launch: Launch) -> tuple[list[Any], ...] | None:
    """Return the lists of hooks, or None if the kernel is no plain one of triton.jit."""
    kinds = [type(layer) for layer in layers(launch.kernel)]
    modules = {kind.__module__ for kind in kinds}
    known = modules <= {"triton.runtime.jit", "triton.runtime.autotuner"}
    if not known or not all(kind.__name__ in _KINDS for kind in kinds):
        return None
    runtime = import_triton().knobs.runtime
    chains = (runtime.launch_enter_hook, runtime.launch_exit_hook)
    *_, kernel = layers(launch.kernel)
    hooks = (kernel.pre_run_hooks, *(getattr(chain, "calls", None) for chain in chains))
    return hooks if all(isinstance(one, list) for one in hooks) else None


def _is_ordinary(launch: Launch) -> bool:
    """Return whether no argument is a descriptor, and no configuration has a hook."""
    hooked = any(config.pre_hook for one in layers(launch.kernel) for config in _configs(one))
    return not hooked and all(_is_plain(one.origin) for one in launch.parameters)


def _is_plain(origin: Origin) -> bool:
    if isinstance(origin, Items):
        return origin.kind in (tuple, list) and all(map(_is_plain, origin.parts))
    return True


def _is_heuristic(layer: Any) -> bool:
    return isinstance(getattr(layer, "values", None), dict)


def _configs(layer: Any) -> Sequence[Any]:
    return getattr(layer, "configs", None) or ()


def _tensors_in(origins: Sequence[Origin]) -> Iterator[Tensor]:
    for origin in origins:
        if isinstance(origin, Tensor):
            yield origin
        elif isinstance(origin, Items):
            yield from _tensors_in(origin.parts)


class _Launcher:
    """Launches through Triton; called with the operator's arguments."""

    def __init__(self, launch: Launch, pointers: Sequence[Tensor]) -> None:
        self.launch, self.pointers = launch, pointers

    def __call__(self, *args: Any) -> tuple[object, ...] | None:
        """Return (function, threads, shared bytes, scratch, device, grid's start and rank,
        parameters), or None if Triton has to launch the kernel each time.
        """
        kernel, start, rank = self.launch.launch(args)
        try:
            device = _device(args[: len(self.launch.tensors)])
            if _reads_more_than_arguments(self.launch, args):
                raise _NeedsTriton
            parameters = tuple(self._parameters(kernel.src.signature, args))
            _check_ordinary(kernel.metadata)
            cubin = read_cubin(kernel, len(parameters))
            index = device.index or 0
            function = load_function(cubin.image, cubin.name, cubin.shared_bytes, index)
        except (_NeedsTriton, ToolchainError):
            return None
        threads = cubin.warps * kernel.metadata.target.warp_size
        return (
            function,
            threads,
            cubin.shared_bytes,
            cubin.scratch,
            index,
            start,
            rank,
            parameters,
        )

    def _parameters(
        self, signature: Mapping[str, Any], args: Sequence[Any]
    ) -> Iterator[_Parameter]:
        """Yield the origin of each argument of the machine code, by Triton's signature."""
        function = function_of(self.launch.kernel)
        assert function is not None
        declared = inspect.signature(function).parameters
        names = iter(declared)  # the positional arguments are the first ones
        given = {one.name or next(names): one.origin for one in self.launch.parameters}
        chosen = {name for one in layers(self.launch.kernel) for name in _chosen_by(one)}
        for name, kind in signature.items():
            if name in given:
                yield from self._packed(given[name], kind, args)
            elif kind != "constexpr":
                if name in chosen:
                    raise _NeedsTriton
                yield from self._packed(Const(declared[name].default), kind, args)

    def _packed(self, origin: Origin, kind: Any, args: Sequence[Any]) -> Iterator[_Parameter]:
        position = len(self.launch.tensors) + origin.slot if isinstance(origin, Number) else 0
        match origin, kind:
            case Number(), "constexpr":
                if args[position] != 1:  # Triton makes a constant of 1
                    raise _NeedsTriton
            case _, "constexpr":
                pass
            case Tensor(), str() if kind.startswith("*"):
                yield "address", self.pointers.index(origin)
            case Number(), str() if kind in _FLOATS:
                yield _FLOATS[kind], position
            case Number(), str() if kind in _INTS:
                yield "int", position
            case Const(value=bool() | int() | float() as value), str():
                yield "word", _word(value, kind)
            case Items(parts=parts), tuple() if len(parts) == len(kind):
                for part, one in zip(parts, kind, strict=True):
                    yield from self._packed(part, one, args)
            case _:
                raise _NeedsTriton


def _chosen_by(layer: Any) -> set[str]:
    """Return the parameters that tuning or heuristics may set."""
    named = [config.kwargs for config in _configs(layer)]
    return {name for some in (*named, getattr(layer, "values", None) or {}) for name in some}


def _word(value: float, kind: str) -> int:
    """Return the bytes of a constant argument, as a signed number of 64 bits."""
    if kind in _FLOATS:
        made = ctypes.c_float(value) if _FLOATS[kind] == "float" else ctypes.c_double(value)
        return int.from_bytes(bytes(made), "little", signed=True)
    if kind in _CONSTANT_INTS and isinstance(value, int):
        return ctypes.c_int64(value).value
    raise _NeedsTriton


def _device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Return the device on which Triton launched; all tensors have to be on it."""
    device: torch.device = import_triton().runtime.driver.active.get_active_torch_device()
    if any(tensor.device != device for tensor in tensors):
        raise _NeedsTriton  # Triton maps the pointers of pinned memory
    return device


def _check_ordinary(facts: Any) -> None:
    unusual = any(getattr(facts, name, value) != value for name, value in _ORDINARY.items())
    clusters = tuple(getattr(facts, "cluster_dims", ()))
    is_cuda = facts.target.backend == "cuda"
    if unusual or not is_cuda or {*clusters} - {1} or facts.shared > _MOST_SHARED:
        raise _NeedsTriton


# -- heuristics ------------------------------------------------------------------------------------


def _reads_more_than_arguments(launch: Launch, args: Sequence[Any]) -> bool:
    """Return whether a heuristic may read addresses, data or variables, which vary from call to
    call: then it gives something else for tensors without memory, or raises.
    """
    heuristics = [one for one in layers(launch.kernel) if _is_heuristic(one)]
    if any(_reads_variables(function) for one in heuristics for function in one.values.values()):
        return True
    if not heuristics:
        return False
    try:
        bare = [_without_memory(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        return bool(_heuristic_values(launch, bare) != _heuristic_values(launch, args))
    except Exception:  # the user's code may raise anything
        return True


def _reads_variables(function: object) -> bool:
    if not isinstance(function, FunctionType):
        return True
    read = inspect.getclosurevars(function)
    fixed = (ModuleType, FunctionType, BuiltinFunctionType, type)
    return not all(isinstance(v, fixed) for v in (*read.nonlocals.values(), *read.globals.values()))


def _heuristic_values(launch: Launch, args: Sequence[Any]) -> dict[str, object]:
    """Compute the metaparameters as the decorators do, with the configuration chosen last."""
    positional, named = launch.passed(args)
    function = function_of(launch.kernel)
    assert function is not None
    meta = dict(zip(inspect.signature(function).parameters, positional, strict=False)) | named
    values: dict[str, object] = {}
    for layer in layers(launch.kernel):
        if _configs(layer):
            meta |= layer.best_config.all_kwargs()
        elif _is_heuristic(layer):
            for name, heuristic in layer.values.items():
                meta[name] = values[name] = heuristic(dict(meta))
    return values


class _Bare(torch.Tensor):
    """Is a meta tensor whose address is unknown, and not 0 as of other meta tensors."""

    def data_ptr(self) -> int:
        raise _NeedsTriton


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return made.as_subclass(_Bare)
