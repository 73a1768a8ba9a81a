"""Maps in-place operations to functional ones that compute the value written.

`functional_overload(add_.Tensor)` is `add.Tensor`. `MUTATORS` holds the operations whose new value
has a cheaper form (copies and fills need not read the old value).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import torch

from ...compat.operators import OpOverload, OpOverloadPacket
from ...errors import CompileFailed
from .recorder import Recorder, Sym, memory_order

__all__ = ["MUTATORS", "functional_overload", "overload_without", "without_generator"]

aten = torch.ops.aten

# In-place names whose functional form is not just the name without the underscore.
_RENAMED = {aten.normal_.default: aten.normal_functional.default}


@lru_cache(maxsize=4096)
def functional_overload(func: OpOverload) -> OpOverload:
    """Return the overload that returns what `func` writes. Raises CompileFailed if there is
    none.
    """
    renamed = _RENAMED.get(func)
    if renamed is not None:
        return renamed
    namespace, _, name = func._schema.name.partition("::")
    # `__iand__` and its kind are operators of their own, whose functional forms are `__and__` and
    # so on.
    if name.startswith("__i") and name.endswith("__"):
        plain = f"__{name[3:-2]}__"
    elif name.endswith("_"):
        plain = name[:-1]
    else:
        raise CompileFailed(f"{func} writes to its arguments in an unsupported way")
    packet = getattr(getattr(torch.ops, namespace), plain, None)
    overloads = (other for other in _overloads(packet, func) if _takes_the_same(other, func))
    functional = next(overloads, None)
    if functional is None:
        raise CompileFailed(f"{func} has no functional counterpart")
    return functional


def _overloads(packet: OpOverloadPacket | None, func: OpOverload) -> list[OpOverload]:
    """Return the overloads that write nothing, the one named like `func` first."""
    names = [] if packet is None else packet.overloads()
    # Stable: after the overload of the same name the others keep torch's order.
    names.sort(key=lambda name: name != func._overloadname)
    made = [getattr(packet, name) for name in names]
    return [overload for overload in made if not overload._schema.is_mutable]


def _takes_the_same(functional: OpOverload, func: OpOverload) -> bool:
    """Compare argument types: names differ, pow_.Scalar is pow.Tensor_Scalar and not pow.Scalar."""
    ours, theirs = func._schema.arguments, functional._schema.arguments
    return [str(argument.type) for argument in ours] == [str(argument.type) for argument in theirs]


@lru_cache(maxsize=4096)
def overload_without(func: OpOverload, argument: str) -> OpOverload:
    """Return the functional overload without `argument`. Without "out" it returns what `func`
    writes to that argument.
    """
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if a.name != argument]
    for overload in _overloads(func.overloadpacket, func):
        given = [(a.name, str(a.type)) for a in overload._schema.arguments]
        if given == wanted:
            return overload
    raise CompileFailed(f"{func} has no functional counterpart")


@lru_cache(maxsize=4096)
def without_generator(func: OpOverload) -> OpOverload:
    """Return the overload for a generator of None. `randn.generator` requires a generator, and
    recorded calls pass none.
    """
    named = [a for a in func._schema.arguments if a.name == "generator"]
    if not named or named[0].has_default_value():
        return func
    return overload_without(func, "generator")


def _copy(recorder: Recorder, old: Sym, source: Sym, non_blocking: bool = False) -> Sym:
    """Record copy_ or fill_ as cast, move and broadcast into new memory, never the source
    itself.
    """
    if source.device != old.device:
        source = source.one(aten._to_copy.default, dtype=old.dtype, device=old.device)
    elif source.dtype is not old.dtype:
        source = source.to(old.dtype)
    else:
        # The old and the new value must be two values: a later write to `source` must not change
        # what was written.
        source = source.one(aten.clone.default)
    return source


def _fill(recorder: Recorder, old: Sym, value: Sym | float) -> Sym:
    if isinstance(value, Sym):
        return _copy(recorder, old, value)
    return recorder.full(old.shape, value, old.dtype, old.device)


def _index_put(
    recorder: Recorder,
    old: Sym,
    indices: list[Sym | None],
    values: Sym,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Sym:
    return recorder.emit_one(aten.index_put.default, old, indices, values, accumulate)


def _bernoulli(recorder: Recorder, old: Sym, p: float = 0.5) -> Sym:
    """Draw in memory order, which is the order in which kernels fill it."""
    order, inverse = memory_order(old.strides)
    turned = order != sorted(order)
    made = recorder.emit_one(aten.bernoulli.p, old.permute(*order) if turned else old, p)
    return made.permute(*inverse) if turned else made


def _polygamma(recorder: Recorder, old: Sym, n: int) -> Sym:
    return recorder.emit_one(aten.polygamma.default, n, old)


def _zero(recorder: Recorder, old: Sym) -> Sym:
    return recorder.full(old.shape, 0, old.dtype, old.device)


MUTATORS: Mapping[OpOverload, Callable[..., Sym]] = {
    aten.copy_.default: _copy,
    aten.fill_.Scalar: _fill,
    aten.fill_.Tensor: _fill,
    aten.zero_.default: _zero,
    aten.bernoulli_.float: _bernoulli,
    # polygamma takes the order before the tensor.
    aten.polygamma_.default: _polygamma,
    # It takes `unsafe`, which index_put lacks.
    aten._index_put_impl_.default: _index_put,
}
