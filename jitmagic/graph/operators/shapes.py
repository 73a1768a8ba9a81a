"""Shape, dtype and stride rules of the most common operations.

`infer(op, args, kwargs)` gives the meta tensor of the result, or None: then the operation's own
meta kernel is asked. Those of the pointwise operations and reductions are Python functions inside
torch (150 microseconds a call, and the first call imports torch._dynamo); these rules take about
five. They implement ATen's TensorIterator: broadcasting, type promotion by category (dimensioned
tensors over 0-dim tensors over numbers), output strides by the order of the inputs' strides. Calls
that eager rejects raise here too, or give None, provided that all tensors are floating-point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from ...operators.operation import ALL, has_row, operation, overloads_named, tensor_first
from ...symbols.size import Size
from ...torch_types import AnyFunction, Args, Kwargs, OpOverload
from ..fresh_meta import fresh_meta, joins_to_rows, same_shape
from ..node_meta import tensors_in
from ..symbolic.sym_node import in_layout
from .fallback_shapes import wrapped
from .registered import infer_registered
from .shape_rules import SHAPE_RULES, ShapeRule, infers
from .tensor_iterator import Tensors, dense, elementwise, has_insignificant_strides, like

__all__ = [
    "infer",
    "infer_accepted",
    "infer_in_place",
    "is_integer",
    "number_dtype",
    "promoted",
    "promoted_categories",
    "tensors_of",
]

aten = torch.ops.aten
Rule = AnyFunction


def infer(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of op on meta tensors, or None if no rule covers it."""
    rule = _rule_of(op)
    if (registered := infer_registered(op, args, kwargs)) is not None:
        return registered
    if rule is None or _takes_wrapped_number(op, args):
        return None
    made = rule.run(*args, **kwargs)
    hangs_on_kernel = rule.by_strides and any(map(has_insignificant_strides, tensors_in(args)))
    return None if hangs_on_kernel else made


def _takes_wrapped_number(op: OpOverload, args: Args) -> bool:
    """Return whether the only tensor is a wrapped number, which dispatch modes see as a number.

    jvp and vmap copy and expand such numbers. Kernels accept them, jitmagic's rules do not.
    """
    return (
        bool(args)
        and isinstance(args[0], int | float | complex | torch.SymInt)
        and isinstance(op._schema.arguments[0].type, torch.TensorType)
        and not any(isinstance(arg, torch.Tensor) for arg in args)
    )


def infer_in_place(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the first argument if op is the in-place form of a rule and the result fits; else
    None.
    """
    functional = _functional(op)
    result = None if functional is None else infer(functional, args, kwargs)
    if result is None or not same_shape(result.shape, args[0].shape):
        return None
    if result.dtype is not args[0].dtype:
        return None
    return args[0]


@cache
def _functional(op: OpOverload) -> OpOverload | None:
    """Return the overload whose rule holds for an in-place operator, or None."""
    if not op._schema.is_mutable or not op._opname.endswith("_"):
        return None
    # pow_.Scalar is pow.Tensor_Scalar; pow.Scalar is a number to the power of a tensor.
    names = op._overloadname, f"Tensor_{op._overloadname}"
    found = [each for each in overloads_named(op._opname[:-1]) if each._overloadname in names]
    rules = ((each, _rule_of(each)) for each in found)
    return next((each for each, rule in rules if rule is not None and rule.in_place), None)


def infer_accepted(op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Return the result of a call whose dtypes eager certainly accepts, or None."""
    rule = _rule_of(_functional(op) or op)
    if rule is None or not rule.accepts_dtypes(tensors_of(args), kwargs):
        return None
    return infer(op, args, kwargs) if _functional(op) is None else infer_in_place(op, args, kwargs)


def tensors_of(values: object) -> list[torch.Tensor]:
    """Return the tensors in nested tuples and lists."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, (tuple, list)):
        return [tensor for value in values for tensor in tensors_of(value)]
    return []


#  type promotion ----------------------------------------------------------------------------------


def promoted(values: Sequence[object]) -> torch.dtype:
    """Return the common dtype of tensors and Python numbers, by category."""
    sized: torch.dtype | None = None
    scalar: torch.dtype | None = None
    number: torch.dtype | None = None
    for value in values:
        if isinstance(value, torch.Tensor):
            dtype = value.dtype
            if value.dim():
                sized = dtype if sized is None else torch.promote_types(sized, dtype)
            else:
                scalar = dtype if scalar is None else torch.promote_types(scalar, dtype)
        else:
            kind = number_dtype(value)
            number = kind if number is None else torch.promote_types(number, kind)
    result = promoted_categories(sized, scalar, number)
    assert result is not None
    return result


def promoted_categories(
    sized: torch.dtype | None, scalar: torch.dtype | None, number: torch.dtype | None
) -> torch.dtype | None:
    """Return the common dtype of c10's categories: tensors with dimensions, 0-dim tensors, Python
    numbers; None for those without operands.
    """
    return _over(sized, _over(scalar, number))


def _over(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Combine two categories: the lower one counts only if it is of a higher kind of number."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_floating_point:
        return higher
    if higher is torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


def number_dtype(value: object) -> torch.dtype:
    """Return the dtype of a tensor made of a bool, an int, a float or a size."""
    if isinstance(value, bool | torch.SymBool):
        return torch.bool
    return torch.int64 if is_integer(value) else torch.get_default_dtype()


def is_integer(value: object) -> bool:
    """Return whether torch takes a number for an int, as it does symbolic sizes."""
    return isinstance(value, int | torch.SymInt | Size)


def _real(values: Sequence[object]) -> bool:
    return not any(
        value.dtype.is_complex if isinstance(value, torch.Tensor) else isinstance(value, complex)
        for value in values
    )


#  rules -------------------------------------------------------------------------------------------


def _pointwise(dtype_of: Callable[[Sequence[Any]], torch.dtype | None], operands: int) -> Rule:
    """Return the elementwise rule over the first `operands` arguments (tensors or numbers)."""

    def rule(*args: object, **kwargs: object) -> torch.Tensor | None:
        values = [value for value in args[:operands] if value is not None]
        values += [v for k, v in kwargs.items() if k in ("other", "min", "max") and v is not None]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if not tensors or not _real(values):
            return None
        dtype = dtype_of(values)
        return None if dtype is None else elementwise(tensors, dtype)

    return rule


@infers(aten.threshold_backward.default, aten.leaky_relu_backward.default)
def _gradient(grad: torch.Tensor, values: torch.Tensor, *args: object) -> torch.Tensor | None:
    """Infer the gradients for which the strides of the values win over those of `grad`."""
    if grad.dtype is not values.dtype or not grad.dtype.is_floating_point:
        return None
    return elementwise([values, grad], grad.dtype)


def _floating(values: Sequence[object]) -> torch.dtype:
    dtype = promoted(values)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _boolean(values: Sequence[object]) -> torch.dtype:
    return torch.bool


def _kept(values: Sequence[Any]) -> torch.dtype:
    dtype: torch.dtype = values[0].dtype
    return dtype


def _equal(values: Sequence[Any]) -> torch.dtype | None:
    dtypes = {value.dtype for value in values}
    return dtypes.pop() if len(dtypes) == 1 else None


@infers(aten.div.Tensor_mode)
def _divided(a: object, b: object, *, rounding_mode: str | None = None) -> torch.Tensor | None:
    made: torch.Tensor | None = _pointwise(promoted if rounding_mode else _floating, 2)(a, b)
    return made


@infers(aten.pow.Scalar, accepts=ALL)
def _power_of_number(base: object, exponent: torch.Tensor) -> torch.Tensor | None:
    """Infer pow.Scalar: row-major, unlike other elementwise results and its meta function."""
    if not _real((base, exponent)):
        return None
    return fresh_meta(exponent.shape, promoted((base, exponent)))


@infers(aten.where.self, other=(0, torch.bool))
def _where(condition: Any, then: object, other: object) -> torch.Tensor | None:
    if not (isinstance(then, torch.Tensor) and isinstance(other, torch.Tensor)):
        return None
    if not _real((then, other)):
        return None
    return elementwise([condition, then, other], promoted((then, other)))


def _matrix(*shapes_of: int, rank: int = 2) -> Rule:
    """Return the rule of mm, bmm: rows of one argument, columns of the other."""

    def rule(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        a, b = (args[i] for i in shapes_of)
        if not a.dim() == b.dim() == rank:
            return None
        if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2] or a.dtype is not b.dtype:
            raise RuntimeError(
                f"cannot multiply {list(a.shape)} {a.dtype} and {list(b.shape)} {b.dtype}"
            )
        shape = (*a.shape[:-1], b.shape[-1])
        addend = args[0].shape if 0 not in shapes_of else ()
        fits = len(addend) <= len(shape) and all(
            have in (1, want) for have, want in zip(reversed(addend), reversed(shape), strict=False)
        )
        return fresh_meta(shape, a.dtype) if fits else None

    return rule


infers(aten.mm.default)(_matrix(0, 1))
infers(aten.bmm.default)(_matrix(0, 1, rank=3))
infers(aten.addmm.default)(_matrix(1, 2))
infers(aten.clone.default, accepts=ALL, by_strides=False)(like)
infers(aten.empty_like.default, aten.zeros_like.default, accepts=ALL, by_strides=False)(like)
infers(aten._to_copy.default, aten._conj_physical.default, by_strides=False)(like)
infers(aten.ones_like.default, by_strides=False)(like)


@infers(aten.full.default)
def _full(size: Sequence[int], value: object = None, **kwargs: Any) -> torch.Tensor | None:
    dtype = kwargs.get("dtype")
    return None if dtype is None else fresh_meta(size, dtype)


@infers(aten.full_like.default, by_strides=False)
def _filled(x: torch.Tensor, value: object, **kwargs: Any) -> torch.Tensor | None:
    return like(x, **kwargs)


@infers(aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default)
def _scattered(x: torch.Tensor, *args: object) -> torch.Tensor:
    if dense(x.shape, x.stride()):
        return fresh_meta(x.shape, x.dtype, x.stride())
    return fresh_meta(x.shape, x.dtype)


@infers(aten.gather.default, other=(1, torch.int64))
def _gathered(
    x: torch.Tensor, dim: int, index: torch.Tensor, *args: object, **kw: object
) -> torch.Tensor | None:
    if index.dim() != x.dim() or not x.dim():
        return None
    dim = wrapped(dim, x.dim())
    if any(i > e for d, (i, e) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim):
        return None
    return fresh_meta(index.shape, x.dtype)


@infers(aten.embedding.default, other=(1, torch.int64))
def _embedded(weight: torch.Tensor, indices: torch.Tensor, *args: object) -> torch.Tensor | None:
    if weight.dim() != 2:
        return None
    return fresh_meta((*indices.shape, *weight.shape[1:]), weight.dtype)


@infers(aten.cat.default)
def _cat(tensors: Tensors, dim: int = 0) -> torch.Tensor | None:
    kept = [t for t in tensors if not (t.dim() == 1 and in_layout("==", t.shape[0], 0))]
    if not kept or not _real(kept) or not joins_to_rows(kept):
        return None
    shape = list(kept[0].shape)
    dim = wrapped(dim, len(shape))
    for t in kept[1:]:
        if t.dim() != len(shape) or any(
            a != b for i, (a, b) in enumerate(zip(t.shape, shape, strict=True)) if i != dim
        ):
            raise RuntimeError("cat of tensors whose shapes differ")
    shape[dim] = sum(t.shape[dim] for t in kept)
    return fresh_meta(shape, promoted(tensors))


@infers(aten.abs.default, in_place=True)
def _magnitude(x: torch.Tensor) -> torch.Tensor | None:
    """Infer abs. For complex input the layout is that of empty_like, unlike in the meta
    function.
    """
    return like(x, dtype=x.dtype.to_real()) if x.dtype.is_complex else elementwise([x], x.dtype)


@infers(aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default)
def _contiguous(x: torch.Tensor, dim: int, *args: object) -> torch.Tensor | None:
    """Infer softmax and similar: a contiguous result."""
    wrapped(dim, x.dim())
    dtype = next((a for a in args if isinstance(a, torch.dtype)), x.dtype)
    return None if True in args else fresh_meta(x.shape, dtype)


@infers(aten.tril.default, aten.triu.default, accepts=ALL)
def _triangle(x: torch.Tensor, diagonal: int = 0) -> torch.Tensor | None:
    return fresh_meta(x.shape, x.dtype) if x.dim() >= 2 and x.is_contiguous() else None


@infers(aten.native_layer_norm.default)
def _layer_norm(
    x: torch.Tensor,
    shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, ...] | None:
    kept = x.dim() - len(shape)
    if not shape or kept < 0 or not same_shape(x.shape[kept:], shape):
        return None
    factors = [t for t in (weight, bias) if t is not None]
    if any(not same_shape(t.shape, shape) or t.dtype is not x.dtype for t in factors):
        return None
    rows = [*x.shape[:kept], *[1] * len(shape)]
    return fresh_meta(x.shape, x.dtype), fresh_meta(rows, x.dtype), fresh_meta(rows, x.dtype)


_PROMOTIONS: Mapping[str, Callable[[Sequence[Any]], torch.dtype | None]] = {
    "common": promoted,
    "equal": _equal,
    "floating": _floating,
    "bool": _boolean,
    "first": _kept,
}


def _rule_of(op: OpOverload) -> ShapeRule | None:
    return SHAPE_RULES.get(op) or _elementwise_rule(op)


@cache
def _elementwise_rule(op: OpOverload) -> ShapeRule | None:
    """Return the rule of an elementwise operation whose row says how it promotes. Making them all
    in advance looks up the overloads of every such operation, which takes 4 ms.
    """
    if op.namespace != "aten" or not has_row(op._opname):
        return None
    row = operation(op._opname)
    if not row.promotion or op not in tensor_first(op._opname):
        return None
    rule = _pointwise(_PROMOTIONS[row.promotion], row.arity)
    return ShapeRule(rule, accepts=row.accepts, in_place=row.promotion != "bool")
