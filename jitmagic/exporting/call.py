"""Describes the call that is exported: flat arguments, their names, and what varies in them.

In: a function or module, example arguments, and the sizes that are declared dynamic. Out: an
`ExampleCall`. Its tensors are private copies, so that no two of them share memory as the user's
may: an exported program takes any arguments of these kinds.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import torch

from ..compat.export import extent_of_dim
from ..compat.pytree import keystr, tree_flatten_with_path, tree_unflatten
from ..errors import OptionError, UsageError
from ..frame.tag import original_of
from ..lazy_dataclass import dataclass
from ..torch_types import AnyFunction, Kwargs

__all__ = ["ATOMS", "ExampleCall", "Extent", "Leaf", "clean_name", "key_of"]

_SMALLEST = 2  # sizes 0 and 1 are special to torch (broadcasting, contiguity)
_DYNAMIC = (
    "{dimension: (lowest, highest)}", "{dimension: None}", "{dimension: torch.export.Dim(...)}",
    "...", "lists and dicts of these for arguments that are containers",
)  # fmt: skip
ATOMS = (int, float, bool, str, type(None))


class Extent(NamedTuple):
    """The values of a dimension or int that varies. Those of the same `name` are always equal.

    `high` is None if there is no limit. `is_required`: an error if the program needs a constant.
    `is_exact`: an error if it is valid in a part of the range alone.
    """

    low: int = _SMALLEST
    high: int | None = None
    name: str = ""
    is_required: bool = True
    is_exact: bool = False

    def has(self, value: int) -> bool:
        """Return whether the value is in the range."""
        return self.low <= value and (self.high is None or value <= self.high)


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """One of the flat arguments: its value in the example call, its name and path, what varies.

    `varying` has dimensions; that of an int has the key -1.
    """

    value: Any
    name: str
    path: str
    varying: Mapping[int, Extent]
    argument: tuple[str, int | str] | None  # ("args", 0), if it is a whole argument


@dataclass(frozen=True, slots=True, eq=False)
class ExampleCall:
    """`target(*args, **kwargs)`, flattened as torch.export does."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Kwargs
    leaves: tuple[Leaf, ...]
    spec: Any  # of (args, kwargs)
    names: tuple[str, ...]  # of the arguments, as the exported module's forward takes them

    @classmethod
    def of(cls, target: Any, args: tuple[Any, ...], kwargs: Kwargs, dynamic: object) -> ExampleCall:
        """Flatten the arguments; raises UsageError for those that cannot be inputs of a graph."""
        called = _signature(target)
        names = _argument_names(called, args, kwargs)
        kwargs = {name: kwargs[name] for name in names[len(args) :]}
        paths, spec = tree_flatten_with_path((args, kwargs))
        declared = _declared(dynamic, called, args, kwargs)
        leaves = tuple(_leaves(paths, names, len(args), declared))
        copies = [leaf.value for leaf in leaves]
        own_args, own_kwargs = tree_unflatten(copies, spec)
        return cls(target, own_args, own_kwargs, leaves, spec, names)


def clean_name(text: str) -> str:
    """Return the text as a part of an identifier, as torch.export writes names of inputs."""
    return re.sub(r"\W", "_", text).lower()


def _signature(target: Any) -> inspect.Signature | None:
    called: AnyFunction = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        return inspect.signature(original_of(called))
    except (TypeError, ValueError):  # a callable without a signature
        return None


def _argument_names(
    signature: inspect.Signature | None, args: Sequence[Any], kwargs: Kwargs
) -> tuple[str, ...]:
    """Return a name for each argument: the positional ones, then keywords in declared order."""
    if signature is None:
        return (*(f"arg_{n}" for n in range(len(args))), *kwargs)
    bound = signature.bind(*args, **kwargs).arguments
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    found: list[str] = []
    for name, value in bound.items():
        if kinds[name] is inspect.Parameter.VAR_POSITIONAL:
            found += [f"{name}_{n}" for n in range(len(value))]
        elif kinds[name] is inspect.Parameter.VAR_KEYWORD:
            found += value
        else:
            found.append(name)
    return tuple(found)


def _leaves(
    paths: Sequence[tuple[Any, Any]],
    names: Sequence[str],
    positional: int,
    declared: Mapping[tuple[str, ...], Extents],
) -> Iterator[Leaf]:
    seen: set[str] = set()
    for (which, first, *rest), value in paths:
        index = first.idx if which.idx == 0 else names.index(first.key, positional)
        inside = keystr(rest)
        name = clean_name("_".join([names[index], *re.findall(r"\w+", inside)]))
        while name in seen:
            name += "_"
        seen.add(name)
        path = names[index] + inside
        whole = ("args", index) if which.idx == 0 else ("kwargs", first.key)
        varying = _varying(
            path, value, declared.get((names[index], *(str(key_of(one)) for one in rest)), {})
        )
        yield Leaf(_own(value, path), name, path, varying, None if rest else whole)


def _own(value: object, path: str) -> object:
    """Return a tensor with the values and layout of an argument; numbers and strings unchanged."""
    if type(value) in ATOMS:
        return value
    if not isinstance(value, torch.Tensor):
        raise UsageError(
            f"{path} is a {type(value).__name__}, which no exported program takes: pass tensors, "
            "numbers and containers, or register the class (torch.export.register_dataclass)"
        )
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        raise UsageError(f"{path} is a {type(value).__name__} that is no plain dense tensor")
    shape, stride = value.shape, value.stride()
    if any(step == 0 and extent > 1 for extent, step in zip(shape, stride, strict=True)):
        made = value.detach().clone()
    else:
        made = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
        made.copy_(value.detach())
    return made.requires_grad_(value.requires_grad)


# -- what varies -----------------------------------------------------------------------------------

Extents = Mapping[int, Extent] | EllipsisType


def _declared(
    dynamic: object, signature: inspect.Signature | None, args: Sequence[Any], kwargs: Kwargs
) -> dict[tuple[str, ...], Extents]:
    """Return what varies, by the path of each leaf: (argument, key, ...)."""
    names = _argument_names(signature, args, kwargs)
    if dynamic is None or dynamic is False:
        return {}
    if dynamic is True:
        return {path: ... for path in _all_paths(names, args, kwargs)}
    if not isinstance(dynamic, Mapping):
        raise OptionError("value for dynamic", dynamic, ("None", "True", "False", *_DYNAMIC))
    found: dict[tuple[str, ...], Extents] = {}
    for name, value in dynamic.items():
        if name not in names and not _is_star(signature, name):
            raise OptionError("argument in dynamic", name, names)
        found |= _nested((name,), value)
    return found


def _all_paths(
    names: Sequence[str], args: Sequence[Any], kwargs: Kwargs
) -> Iterator[tuple[str, ...]]:
    paths, _ = tree_flatten_with_path((args, kwargs))
    for (which, first, *rest), value in paths:
        if isinstance(value, torch.Tensor):
            name = names[first.idx] if which.idx == 0 else first.key
            yield (name, *(str(key_of(one)) for one in rest))


def _is_star(signature: inspect.Signature | None, name: str) -> bool:
    known = None if signature is None else signature.parameters.get(name)
    return known is not None and known.kind is inspect.Parameter.VAR_POSITIONAL


def _nested(path: tuple[str, ...], value: object) -> dict[tuple[str, ...], Extents]:
    """Return the extents in a nested declaration, as that of `{"batch": {"x": {0: None}}}`."""
    if value is None:
        return {}
    if isinstance(value, EllipsisType):
        return {path: ...}
    if (extent := _extent(value)) is not None:
        return {path: {-1: extent}}
    if isinstance(value, Mapping) and value and all(type(key) is int for key in value):
        dims = {dim: _extent(one) for dim, one in value.items()}
        if None not in dims.values():
            return {path: {dim: one for dim, one in dims.items() if one is not None}}
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, tuple | list):
        pairs = list(enumerate(value))
    else:
        raise OptionError("value for dynamic", value, _DYNAMIC)
    found: dict[tuple[str, ...], Extents] = {}
    for key, part in pairs:
        found |= _nested((*path, str(key)), part)
    return found


def _extent(value: Any) -> Extent | None:
    """Return the extent of (lowest, highest), None or a torch.export.Dim; None for others."""
    if value is None:
        return Extent()
    is_pair = isinstance(value, tuple) and len(value) == 2
    if is_pair and type(value[0]) is int and (value[1] is None or type(value[1]) is int):
        if value[0] < 0 or (value[1] is not None and value[0] > value[1]):
            raise OptionError("range in dynamic", value, _DYNAMIC)
        return Extent(value[0], value[1], is_exact=True)
    known = extent_of_dim(value)
    if known is None:
        return None
    low, high, name, is_required = known
    return Extent(low or _SMALLEST, high, name, is_required, is_exact=bool(low or high))


def key_of(entry: Any) -> Any:
    """Return the key, index or attribute of a step in the path of a leaf."""
    return next(getattr(entry, n) for n in ("key", "idx", "name") if hasattr(entry, n))


def _varying(path: str, value: object, declared: Extents) -> dict[int, Extent]:
    """Return the extents of a leaf; raises UsageError for those that do not fit its value."""
    if isinstance(declared, EllipsisType):
        if type(value) is int:
            return {-1: Extent(low=-(2**62), is_required=False)}
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        chosen = Extent(is_required=False)
        return {dim: chosen for dim, size in enumerate(shape) if chosen.has(size)}
    found = {}
    for dim, extent in declared.items():
        if isinstance(value, torch.Tensor) and dim >= 0:
            if dim >= value.dim():
                raise UsageError(f"{path} has no dimension {dim}")
            size, what = value.shape[dim], f"dimension {dim} of {path}"
        elif type(value) is int and dim == -1:
            size, what = value, path
        else:
            raise UsageError(f"{path}: only dimensions of tensors and ints can be dynamic")
        if extent.name == "static":
            continue
        if not extent.has(size):
            raise UsageError(
                f"{what} is {size} in the example call, outside of its range: "
                f"pass an example of a size from {extent.low} to {extent.high or 'any'}"
            )
        found[dim] = extent
    return found
