"""Defines forms of foreign operators that return 0-dim tensors instead of numbers.

Input: an overload whose results are numbers, or numbers and tensors. Output: an operator of
jitmagic with the same arguments, which calls the overload and puts each number into a tensor. A
graph has a node for it; the trace reads the numbers as it reads those of `tensor.item()`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import count

import torch

from ...lazy_dataclass import dataclass
from ...torch_types import OpOverload
from ..node_meta import tensors_in
from .foreign import NUMBER_TYPES, TENSOR_TYPES
from .operator_library import DEFINED, LIBRARY, defines_operators, is_registered
from .registered import fake_of

__all__ = ["TensorForm", "tensor_form"]

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class TensorForm:
    """An operator that returns tensors. `numbers`: the positions of results that are numbers of the
    original.
    """

    op: OpOverload
    numbers: frozenset[int]

    @property
    def has_tensors(self) -> bool:
        """Return whether the original returns tensors too."""
        return len(self.op._schema.returns) > len(self.numbers)


def tensor_form(op: OpOverload) -> TensorForm | None:
    """Return the form of an operator, or None if none of its results is a number."""
    kinds = tuple(NUMBER_TYPES.get(str(returned.type)) for returned in op._schema.returns)
    return None if not any(kinds) else _form(op, kinds)


@defines_operators
def _operator_of(op: OpOverload) -> OpOverload:
    form = tensor_form(op)
    assert form is not None
    return form.op


@lru_cache(maxsize=256)
def _form(op: OpOverload, kinds: tuple[torch.dtype | None, ...]) -> TensorForm:
    text = str(op._schema)
    arguments = text[text.index("(") : text.rindex(" -> ")]
    results = ", ".join(
        "Tensor" if kind else TENSOR_TYPES[str(returned.type)]
        for kind, returned in zip(kinds, op._schema.returns, strict=True)
    )
    names = (f"{op._schema.name.replace('::', '_')}_numbers{n}" for n in count())
    name = next(name for name in names if not is_registered(name))
    LIBRARY.define(f"{name}{arguments} -> ({results})", tags=tuple(op.tags))
    LIBRARY.impl(name, _with_tensors(op, kinds), "CompositeExplicitAutograd")
    LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")  # numbers have no history
    fake = _fake(op, kinds)
    torch.library.register_fake(f"jitmagic::{name}", fake, lib=LIBRARY)
    numbers = frozenset(n for n, kind in enumerate(kinds) if kind)
    made: OpOverload = getattr(torch.ops.jitmagic, name).default
    DEFINED[made] = _operator_of, (op,)
    return TensorForm(made, numbers)


def _with_tensors(
    op: Callable[..., object], kinds: tuple[torch.dtype | None, ...]
) -> Callable[..., object]:
    """Return a function that calls another one and puts numbers among its results into tensors."""

    def run(*args: object, **kwargs: object) -> object:
        given = next(tensors_in((args, kwargs)), None)
        device = _CPU if given is None else given.device
        made = op(*args, **kwargs)
        results = tuple(
            one if kind is None else torch.tensor(one, dtype=kind, device=device)
            for one, kind in zip(made if isinstance(made, tuple) else (made,), kinds, strict=True)
        )
        return results[0] if len(kinds) == 1 else results

    return run


def _fake(op: OpOverload, kinds: tuple[torch.dtype | None, ...]) -> Callable[..., object]:
    def run(*args: object, **kwargs: object) -> object:
        results = [None if kind is None else torch.empty((), dtype=kind) for kind in kinds]
        if None in kinds:
            made = (fake_of(op) or op)(*args, **kwargs)
            pairs = zip(made if isinstance(made, tuple) else (made,), results, strict=True)
            results = [one if number is None else number for one, number in pairs]
        return results[0] if len(kinds) == 1 else tuple(results)

    return run
