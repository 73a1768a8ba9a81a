"""Runs one call of a graph under construction on meta tensors, with every check that eager makes.

Input: a target with meta tensors as arguments, their devices, and the modes of the program. Output:
the result as meta tensors, the device, and the tensors written to. `_STEPS` has the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ..errors import UserLine
from ..lazy_dataclass import dataclass, field
from .autocast_mode import OFF, Autocast
from .devices import Placement, as_device, kernels_on, place
from .distributed.objects import made_on_mesh
from .memory import storage_under
from .node_meta import tensors_in
from .operators.autocast import CastCache, cast_result
from .operators.foreign import has_side_effects, is_random_op
from .operators.kernel_refusals import check_dtypes
from .operators.strictness import check_as_kernels_do, check_for_meta, check_out
from .propagate import InnerCall, allowing_data_sizes, noting_inner_calls, run_on_meta
from .rules import Rules
from .symbolic.data_sizes import NewSize
from .target_names import Target, target_name
from .triton.launches import launch_of
from .wrappers.wrapping import (
    NotFollowed,
    inner_tensors,
    is_library_call,
    is_wrapper,
    is_wrapper_class,
)

__all__ = ["MetaCall", "Modes"]


class Modes(NamedTuple):
    """The state of the traced program that a call depends on."""

    grad: bool
    autocast: Autocast
    casts: CastCache
    fresh_size: NewSize | None  # creates unbacked sizes, if they are allowed
    line: UserLine | None  # named by warnings; None: no warning is shown


@dataclass(slots=True, eq=False)
class MetaCall:
    """One call: its arguments, and what the steps have found so far."""

    target: Target
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    devices: Mapping[int, torch.device]  # of each tensor argument, by id
    modes: Modes
    tensors: list[torch.Tensor]  # the tensor arguments
    name: str = field(init=False)
    placement: Placement = field(init=False)
    value: Any = field(init=False)
    is_cast: bool = field(init=False)  # whether autocast gave the result
    sizes: list[Any] = field(init=False)  # unbacked sizes that the call created
    inner: list[InnerCall] | None = None  # calls on inner tensors, if an argument is a wrapper
    storages: set[int] = field(default_factory=set)  # that the call writes to
    written: list[bool] = field(init=False)  # for each tensor argument
    changed: list[torch.Tensor] = field(init=False)  # the tensor arguments written to

    def run(self) -> None:
        """Run all steps. Raises DataDependent, EagerRaises, MixedDevices, StaleCast."""
        target, self.name = self.target, target_name(self.target)
        if (device := made_on_mesh(target)) is not None:
            self.placement = Placement(as_device(device), self.args, self.kwargs)
        else:
            self.placement = place(self.name, self.args, self.kwargs, self.device_of)
        is_class = isinstance(target, type) and issubclass(target, torch.Tensor)
        makes_wrapper = is_class and is_wrapper_class(target)  # type: ignore[arg-type]
        calls_inside = makes_wrapper or is_library_call(target)
        with kernels_on(self.placement.device):
            if not calls_inside and not any(map(is_wrapper, self.tensors)):
                _STEPS.ask(self)
                return
            with noting_inner_calls() as self.inner:
                _STEPS.ask(self)

    @property
    def acts_inside(self) -> bool:
        """Return whether a call on inner tensors draws random numbers or has other effects."""
        return any(has_side_effects(call.op) for call in self.inner or ())

    @property
    def draws_inside(self) -> bool:
        """Return whether a call on inner tensors draws random numbers."""
        return any(is_random_op(call.op) for call in self.inner or ())

    def with_inner_writes(
        self, written: tuple[Node, ...], inputs_over: Mapping[int | None, list[tuple[int, Node]]]
    ) -> tuple[Node, ...]:
        """Return the nodes written to, with the inputs whose memory inner calls write to. Raises
        NotFollowed if a wrapper from outside gets another history by that.
        """
        inside = [node for memory in self.storages for _, node in inputs_over.get(memory, ())]
        is_recorded = self.modes.grad and any(tensor.requires_grad for tensor in self.changed)
        if inside and is_recorded:
            raise NotFollowed("it changes the history of a tensor subclass from outside")
        return tuple(dict.fromkeys((*written, *inside)))

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the real device of a tensor argument."""
        return self.devices[id(tensor)]


def _check_before(call: MetaCall) -> None:
    check_for_meta(call.name, call.placement.args, call.placement.kwargs)


def _run(call: MetaCall) -> None:
    """Run with the casts of autocast, else without; note which arguments are written to."""
    modes, placed = call.modes, call.placement
    before, storages = [tensor._version for tensor in call.tensors], call.storages
    # Collectives and changes of placement compute nothing that autocast would cast.
    autocast = OFF if is_library_call(call.target) else modes.autocast
    with allowing_data_sizes(modes.fresh_size) as call.sizes:
        call.value = cast_result(
            autocast, modes.casts, call.target, call.args, call.kwargs, call.device_of,
            modes.grad, modes.line,
        )  # fmt: skip
        call.is_cast = call.value is not None
        if not call.is_cast:
            run = placed.method or call.target
            call.value = run_on_meta(
                run, placed.args, placed.kwargs, modes.grad, storages, modes.line,
                guesses=call.inner is None,
            )  # fmt: skip
    call.written = [
        tensor._version != version or _is_written(tensor, storages)
        for tensor, version in zip(call.tensors, before, strict=True)
    ]
    call.changed = [
        tensor for tensor, is_so in zip(call.tensors, call.written, strict=True) if is_so
    ]


def _is_written(tensor: torch.Tensor, storages: set[int]) -> bool:
    """Return whether one of the storages is the tensor's, or is inside of it: list operations in
    place (torch._foreach_mul_) write to the inner tensors of a wrapper and raise no version of it.
    """
    return any(storage_under(part) in storages for part in inner_tensors(tensor))


def _refuse_layouts(call: MetaCall) -> None:
    made = (t for t in tensors_in(call.value) if not is_wrapper(t))
    if any(t.layout is not torch.strided for t in made):
        raise NotFollowed("its result leaves the strided layout")


def _copy_moved(call: MetaCall) -> None:
    """Copy a result that is an argument: between meta tensors, a change of device moves nothing."""
    value = call.value
    if call.placement.moves and isinstance(value, torch.Tensor) and id(value) in call.devices:
        call.value = run_on_meta("clone", (value,), {}, call.modes.grad)


def _refuse_layout(call: MetaCall) -> None:
    """Refuse nested tensors in the strided layout, which no graph holds."""
    if call.inner is not None and any(
        tensor.is_nested and not is_wrapper(tensor) for tensor in tensors_in(call.value)
    ):
        raise NotFollowed("its result is a nested tensor in the strided layout")


def _check_kernels(call: MetaCall) -> None:
    # Calls inside a cast or a wrapper were checked; a launch is recorded on whole storages.
    is_checked = call.is_cast or call.inner is not None
    if not is_checked and launch_of(call.target) is None:
        placed = call.placement
        check_as_kernels_do(call.name, placed.args, placed.kwargs, call.changed, placed.device)


def _check_out(call: MetaCall) -> None:
    placed = call.placement
    targets = placed.kwargs.get("out")
    if targets is not None and call.inner is None:
        others = {name: value for name, value in placed.kwargs.items() if name != "out"}
        run = placed.method or call.target
        alone = run_on_meta(run, placed.args, others, call.modes.grad)
        check_out(call.name, targets, alone, call.changed)


def _check_dtypes(call: MetaCall) -> None:
    if call.inner is not None:
        for op, args, kwargs in tuple(call.inner):
            check_dtypes(op, op._opname, args, dict(kwargs), call.placement.device)
    elif not call.is_cast:  # the probe runs without autocast, on the dtypes before the casts
        placed = call.placement
        run = placed.method or call.target
        check_dtypes(run, call.name, placed.args, placed.kwargs, placed.device)


_STEPS: Rules[None] = Rules(
    _check_before,  # first: running such a call would end the process
    _run,
    _refuse_layouts,  # the next ones ask for the memory of the result
    _copy_moved,
    _refuse_layout,
    _check_kernels,  # these three compare the call with its result and its writes
    _check_out,
    _check_dtypes,  # last: it may run the real kernel, on arguments that the others accept
)
