"""Records a call of numpy as a node that calls numpy itself.

Input: a Call for which torch's emulation does not give numpy's results: factorisations, whose signs
and thresholds differ between two LAPACKs. Output: the kinds and layouts of the results, found by
calling the function on samples, and the node. Its results are numpy's to the last bit; so are its
errors, since eager runs the frame when a node raises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ....lazy_dataclass import dataclass
from ....symbols.probe import Answers, Verdict
from ....torch_types import OpOverload
from ..base import Args, Machine, Value
from ..containers.namedtuples import NamedTupleValue
from ..containers.sequences import ListValue, TupleValue
from ..numpy_scalars import ARRAY_SCALARS, np
from ..tensors.tensor import TensorValue, record
from .array_samples import CannotSample, materialised, numpy_array, samples
from .emulation_check import Call, SizedCall, filled
from .numpy_operators import ArrayLayout, numpy_operator

__all__ = ["NodeRefused", "call_numpy", "is_of_lapack"]

# Without infinities, for which LAPACK prints on stderr. Large arrays get one round, as their
# factorisation takes as long as in the program; those of 2048 rows take seconds.
_ROUNDS = (0, 1, 4)
_LARGE, _LARGEST = 1 << 14, 1 << 20  # elements
_ANSWERS = Answers("numpy alone gives the result", 512)


@dataclass(frozen=True, slots=True)
class _Node:
    """The operator for a call, and the result: a class for each array, in nested sequences."""

    operator: OpOverload
    result: Any


class NodeRefused(CannotSample):
    """Raised with the reason why the call cannot be a node."""


def is_of_lapack(function: Any) -> bool:
    """Return whether it is a function of numpy.linalg."""
    return getattr(np.linalg, getattr(function, "__name__", ""), None) is function


def _node(call: Call) -> Verdict:
    if not call.slots:
        return Verdict.fails("no argument is an array")
    most = max(spec.size for spec in call.slots)
    if most > _LARGEST:
        return Verdict.fails("an array is too large to try the call on samples")
    rounds = _ROUNDS if most <= _LARGE else _ROUNDS[-1:]
    try:
        found = [one for number in rounds if (one := _tried(call, number)) is not None]
        if not found:
            raise NodeRefused("numpy raises for all sample values")
        if any(one != found[0] for one in found):
            raise NodeRefused("the kind of its result depends on the data")
    except CannotSample as refused:
        return Verdict.fails(str(refused))
    result, layouts = found[0]
    name = call.real.__name__
    made = numpy_operator(name, partial(_run, call), len(call.slots), layouts)
    return Verdict.holds(_Node(made, result))


def _tried(call: Call, number: int) -> Any:
    """Return the kinds and layouts of the results for one round; None if numpy refuses the data."""
    data = [samples(spec, index, number) for index, spec in enumerate(call.slots)]
    memory = materialised(call.slots, data)
    before = [one.clone() for one in memory]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = _called(call, memory)
    except np.linalg.LinAlgError:
        return None
    except Exception as error:  # numpy raises errors of many classes for wrong arguments
        raise NodeRefused(f"numpy raises {type(error).__name__}") from None
    if any(
        not torch.equal(_bits(one), _bits(old)) for one, old in zip(memory, before, strict=True)
    ):
        raise NodeRefused("it writes to an argument")
    leaves = list(_leaves(result))
    tensors = [_tensor(leaf, memory) for leaf in leaves]
    layouts = [ArrayLayout(tuple(t.shape), tuple(t.stride()), t.dtype) for t in tensors]
    return _kinds(result), layouts


def _run(call: Call, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Call numpy; return its arrays as tensors."""
    return [_tensor(leaf, tensors) for leaf in _leaves(_called(call, tensors))]


def _called(call: Call, memory: Any) -> Any:
    plain = [one.resolve_conj().resolve_neg() for one in memory]
    arrays = [numpy_array(spec, one) for spec, one in zip(call.slots, plain, strict=True)]
    args, kwargs = filled((call.args, call.kwargs), arrays, lambda value: value)
    return call.real(*args, **kwargs)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def _leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, tuple | list):
        for item in result:
            yield from _leaves(item)
    else:
        yield result


def _kinds(result: Any) -> Any:
    """Return the class of each array in (class of the sequence, items)."""
    if not isinstance(result, tuple | list):
        return type(result)
    if type(result) not in (tuple, list) and not hasattr(type(result), "_fields"):
        raise NodeRefused(f"it returns a {type(result).__name__}")
    return type(result), [_kinds(item) for item in result]


def _tensor(leaf: Any, memory: Any) -> torch.Tensor:
    """Return a tensor with the array's memory, which must be its own."""
    if type(leaf) in ARRAY_SCALARS:
        return torch.from_numpy(np.array(leaf))
    if type(leaf) is not np.ndarray:
        raise NodeRefused(f"it returns a {type(leaf).__name__}")
    try:
        made = torch.from_numpy(leaf if leaf.flags.writeable else leaf.copy())
    except (TypeError, ValueError) as error:
        raise NodeRefused(f"it returns an array that no tensor can hold ({error})") from None
    mine = made.untyped_storage().data_ptr()
    if any(one.untyped_storage().data_ptr() == mine for one in memory):
        raise NodeRefused("it returns memory of an argument")
    return made


def call_numpy(
    machine: Machine, sized: SizedCall, tensors: Args, make: Callable[[TensorValue, type], Value]
) -> Value:
    """Record the node of a call. `make` returns the Value of an array. Raises NodeRefused."""
    sized.check(False, "numpy itself runs it")
    verdict = _ANSWERS.of(sized.now().real, sized.now().key, partial(_node, sized.now()))
    if verdict.outcome != "holds":
        raise NodeRefused(str(verdict.reason))
    node: _Node = verdict.found
    made = record(machine, node.operator, tensors)
    results = iter(made.items if isinstance(made, TupleValue) else [made])
    return _wrapped(machine, node.result, results, make)


def _wrapped(machine: Machine, result: Any, tensors: Iterator[Any], make: Any) -> Value:
    if not isinstance(result, tuple):
        array: Value = make(next(tensors), result)
        return array
    kind, parts = result
    items = [_wrapped(machine, part, tensors, make) for part in parts]
    if kind is list:
        return ListValue(items)
    if kind is tuple:
        return TupleValue(items)
    return NamedTupleValue(machine.class_of(kind, None), items)
