"""Every elementwise operator on numbers at the edges of its dtype, beside eager and float64.

Torch's samples are ordinary numbers: what an operator makes of nan, infinities, -0.0, denormals and
the largest is told by these. An element may also be what eager gives for it alone: its vectors and
its scalars differ in places (fmod by a denormal).

    python -m tests.operators.special_values [cpu | cuda]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

import jitmagic

__all__ = ["DTYPES", "chunks", "difference"]

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int16, torch.int32, torch.int64, torch.uint8),
)
_LEFT_OUT = ("complex", "lcm")  # two parts, one number each; eager's own division traps
_AS_LONG_AS_THE_DEGREE = "polynomial"  # eager's loop: minutes for the largest int
_EITHER_ZERO = ("fmax", "fmin")  # of 0.0 and -0.0 C gives either, and eager's dtypes differ
_TOGETHER = 12  # operators in one function: one kernel, not a dozen
_ORDINARY = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 10.0, 88.0, 100.0, 1e4, 1e-3)


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        near = (limits.min, limits.min + 1, limits.max - 1, limits.max, *range(-3, 8))
        kept = {n for n in near if limits.min <= n <= limits.max}
        return torch.tensor(sorted(kept), dtype=dtype)
    facts = torch.finfo(dtype)
    edges = (0.0, torch.inf, facts.max, facts.tiny, facts.tiny / 4, facts.eps, 1 + facts.eps)
    sizes = torch.tensor([*_ORDINARY, *edges, 1 - facts.eps], dtype=torch.float64)
    return torch.cat([sizes, -sizes, torch.tensor([torch.nan])]).to(dtype)


def _operands(arity: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    numbers = _numbers(dtype)
    each = torch.cartesian_prod(*[numbers] * arity).reshape(-1, arity)
    return [column.contiguous().to(device) for column in each.unbind(1)]


def chunks(arity: int, dtype: torch.dtype, device: str) -> Iterator[list[Any]]:
    kind = UnaryUfuncInfo if arity == 1 else BinaryUfuncInfo
    known = [
        op
        for op in op_db
        if isinstance(op, kind) and dtype in op.supported_dtypes(device)
        if op.full_name not in _LEFT_OUT
        if dtype.is_floating_point or _AS_LONG_AS_THE_DEGREE not in op.full_name
    ]
    for start in range(0, len(known), _TOGETHER):
        yield known[start : start + _TOGETHER]


def difference(ops: Sequence[Any], arity: int, dtype: torch.dtype, device: str) -> list[str]:
    """What generated code gives that neither eager nor float64 does."""
    operands = _operands(arity, dtype, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = [(op, _eager(op, operands)) for op in ops]
        known = [(op, wanted) for op, wanted in eager if isinstance(wanted, torch.Tensor)]
        functions = [op.op for op, _ in known]

        def program(*given: torch.Tensor) -> list[torch.Tensor]:
            return [function(*given) for function in functions]

        made = jitmagic.jit(program)(*operands)
        return [
            f"{op.full_name}{[x[n].item() for x in operands]}: {have[n].item()!r}, "
            f"in eager {wanted[n].item()!r}"
            for (op, wanted), have in zip(known, made, strict=True)
            for n in _unlike(op, operands, wanted, have)[:3]
        ]


def _eager(op: Any, operands: Sequence[torch.Tensor]) -> Any:
    try:
        return op.op(*operands)
    except Exception:  # a division by zero; one that wants more operands, or a GPU
        return None


def _unlike(
    op: Any, operands: Sequence[torch.Tensor], wanted: torch.Tensor, have: torch.Tensor
) -> list[int]:
    assert have.dtype is wanted.dtype
    if op.full_name in _EITHER_ZERO:
        wanted, have = wanted + 0.0, have + 0.0
    unlike: list[int] = (~_close(have, wanted)).nonzero().flatten().tolist()
    return [n for n in unlike if not _is_other_answer(op, [x[n] for x in operands], have[n])]


def _is_other_answer(op: Any, numbers: list[torch.Tensor], have: torch.Tensor) -> bool:
    if bool(_close(have, op.op(*numbers))):
        return True
    if not numbers[0].is_floating_point() or not have.isfinite():
        return False
    exact = op.op(*[x.double() for x in numbers])
    return bool(_close(have, exact.to(have.dtype)))


def _close(have: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """nan, infinities, zeros and their signs are alike; other numbers by a few roundings."""
    if have.is_complex():
        return _close(torch.view_as_real(have), torch.view_as_real(wanted)).all(-1)
    if not have.is_floating_point():
        return have == wanted
    eps = torch.finfo(have.dtype).eps
    near = torch.isclose(have, wanted, rtol=8 * eps, atol=eps, equal_nan=True)
    zero = (have == 0) & (wanted == 0)
    return near & (~zero | (have.signbit() == wanted.signbit()))


def _main(device: str) -> None:
    wrong: list[str] = []
    for dtype in DTYPES:
        for arity in (1, 2):
            for ops in chunks(arity, dtype, device):
                wrong += (f"{dtype} {text}" for text in difference(ops, arity, dtype, device))
    print(*wrong, f"{len(wrong)} differ", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    _main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
