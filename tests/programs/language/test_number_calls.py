"""Varying floats in calls other than arithmetic are read by compiled code, in the range in which
torch takes the same path for all of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.trace.values.numbers import number_arguments
from tests.programs.counts import breaks_of, counts_of, eager_of

from .number_calls import CALLS, PROBABILITIES, Program, joint, outcome, outcomes

EDGES = (0.0, 1.0, -1.0, -0.0, math.nan, math.inf, -math.inf, 1e-30, 7e4, 1e300)
TOGETHER = 11  # programs of a function
X = torch.arange(32.0).reshape(4, 8) / 8 - 2
TIERS: dict[str, dict[str, Any]] = {
    "blocks": {"options": {"cpu_tier": "blocks"}},
    "numba": {"options": {"cpu_tier": "numba"}},
    "aten": {"options": {"cpu_tier": "aten"}},
    "plain graph": {"backend": "eager"},
    "ATen graph": {"backend": "aot_eager"},
    "unfused": {"options": {"fuse": False}},
}


def check(
    program: Program, x: Tensor, numbers: Sequence[float], tagged: Any, needs_grad: bool = True
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's: a target of another size
        for number in numbers:
            wanted = outcome(program, x, number, needs_grad)
            got = outcome(tagged, x, number, needs_grad)
            if any(isinstance(part, str) for part in (*wanted, *got)):
                assert got == wanted, number
                continue
            compare(got, wanted, x.dtype, number)


def compare(got: Any, wanted: Any, dtype: torch.dtype, where: object) -> None:
    loose = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(dtype, 2e-6)
    torch.testing.assert_close(
        got,
        wanted,
        rtol=loose,
        atol=loose * 10,
        equal_nan=True,
        msg=lambda m: f"{where}: {m}",
    )


def check_counts(tagged: Any, most: int = 2) -> None:
    made = counts_of(tagged)
    assert not eager_of(tagged)
    assert (made.breaks, made.graphs <= most) == (0, True), breaks_of(tagged)


@cache
def difference_together(names: tuple[str, ...], dtype: torch.dtype) -> Exception | None:
    """Return the differences of the programs as one function, if there are any."""
    programs = [CALLS[name][0] for name in names]
    eager, tagged, x = joint(programs), jitmagic.jit(joint(programs)), X.to(dtype)
    try:
        for numbers in zip(*(CALLS[name][1] for name in names), strict=True):
            wanted, got = outcomes(eager, x, numbers), outcomes(tagged, x, numbers)
            for name, theirs, ours in zip((*names, "drawn next"), wanted, got, strict=True):
                compare(ours, theirs, dtype, name)
        check_counts(tagged)
    except Exception as error:
        return error
    return None


@cache
def difference_alone(name: str, dtype: torch.dtype) -> Exception | None:
    program, numbers = CALLS[name]
    tagged = jitmagic.jit(lambda x, s: program(x, s))
    try:
        check(program, X.to(dtype), numbers, tagged)
        check_counts(tagged)
    except Exception as error:
        return error
    return None


def check_beside(name: str, names: Sequence[str], dtype: torch.dtype) -> None:
    """Run the names together, and each alone if these differ, to find the one at fault."""
    first = names.index(name) // TOGETHER * TOGETHER
    chunk = tuple(names[first : first + TOGETHER])
    together = difference_together(chunk, dtype)
    if together is None:
        return
    if (alone := difference_alone(name, dtype)) is not None:
        raise alone
    if not any(difference_alone(other, dtype) for other in chunk):
        raise AssertionError("only beside others") from together


@pytest.mark.parametrize("name", CALLS)
def test_ten_numbers_take_two_compiles(name: str) -> None:
    check_beside(name, list(CALLS), torch.float32)


ACTIVATIONS = ("leaky relu", "elu", "softplus", "hardtanh", "hardshrink", "threshold")
OTHERS = (
    *("dropout", "label smoothing", "smooth l1", "huber", "celu", "layer norm", "rms norm"),
    *("quantile", "margin ranking", "scale of attention", "exponential", "bernoulli in place"),
    *("value of threshold", "pad", "hinge embedding", "cosine similarity"),
    *("vmap", "vmap of grad", "hessian"),
)


@pytest.mark.parametrize("name", [*ACTIVATIONS, *OTHERS])
def test_edges(name: str) -> None:
    """A number for which torch takes another path or raises has a variant of its own, or none."""
    program, numbers = CALLS[name]
    tagged = jitmagic.jit(lambda x, s: program(x, s), options={"recompile_limit": 20})
    edges = [edge for edge in EDGES if not (name == "hardshrink" and math.isnan(edge))]  # by lanes
    check(program, X, (*numbers[:3], *edges), tagged)


OF_OTHER_DTYPES = (*ACTIVATIONS, "dropout", "huber", "smooth l1", "layer norm")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OF_OTHER_DTYPES)
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    check_beside(name, OF_OTHER_DTYPES, dtype)


def test_a_number_is_rounded_where_eager_rounds_it() -> None:
    """Results equal those of a constant exactly, in each dtype."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(1000).to(dtype)
        for name in ("leaky relu", "hardtanh", "threshold", "value of threshold", "hardshrink"):
            program = CALLS[name][0]
            tagged = jitmagic.jit(lambda x, s, program=program: program(x, s))
            for number in (0.5, 0.1, 0.3, 1 / 3, 0.7123456789):
                assert torch.equal(tagged(x, number), program(x, number)), (name, dtype, number)


def test_transform_is_probed_once_per_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    real = number_arguments.range_of_number
    monkeypatch.setattr(
        number_arguments, "range_of_number", lambda *args: asked.append(args) or real(*args)
    )
    program, numbers = CALLS["vmap"]
    tagged = jitmagic.jit(lambda x, s: program(x, s), backend="eager")
    check(program, X, numbers[:3], tagged)
    check_counts(tagged)
    assert len(asked) == 1


def both(x: Tensor, p: float) -> Tensor:
    y = F.layer_norm(F.elu(x, p), x.shape[-1:], eps=p)
    return F.leaky_relu(F.dropout(y, p), p) * p


@pytest.mark.parametrize("tier", TIERS)
def test_tiers(tier: str) -> None:
    tagged = jitmagic.jit(lambda x, p: both(x, p), **TIERS[tier])
    check(both, X, PROBABILITIES, tagged)
    check_counts(tagged)


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_vary_too(dynamic: bool | None) -> None:
    tagged = jitmagic.jit(lambda x, p: both(x, p), dynamic=dynamic)
    for rows, p in zip((4, 5, 7, 9, 12, 4, 6, 3, 8, 5), PROBABILITIES, strict=True):
        check(both, torch.randn(rows, 8), (p,), tagged)
    check_counts(tagged)


def test_varying_int_is_a_float_where_a_call_takes_floats() -> None:
    def program(x: Tensor, n: float) -> Tensor:
        return F.elu(x, n) + F.hardtanh(x, -n, n) + F.huber_loss(x, x.detach() * 2, delta=n)

    tagged = jitmagic.jit(lambda x, n: program(x, n))
    check(program, X, range(2, 14), tagged)
    check_counts(tagged)
    assert sum(record.kernels > 0 for record in handle_of(tagged).journal) <= 4


def test_backward_uses_the_number_of_its_own_forward() -> None:
    def program(x: Tensor, p: float) -> Tensor:
        return F.softplus(F.dropout(F.elu(x, p), p), p)

    tagged = jitmagic.jit(lambda x, p: program(x, p))
    grads = []
    for run in (tagged, program):
        torch.manual_seed(0)
        leaves = [X.clone().requires_grad_() for _ in PROBABILITIES]
        made = [run(x, p) for x, p in zip(leaves, PROBABILITIES, strict=True)]
        for result in reversed(made):
            result.sum().backward()
        grads.append([x.grad for x in leaves])
    torch.testing.assert_close(*grads)


def test_other_ways_to_run_a_backward() -> None:
    def within(x: Tensor, p: float) -> Tensor:
        y = x.detach().clone().requires_grad_()
        F.dropout(F.elu(y, p), p).sum().backward()
        return y.grad

    def again(x: Tensor, p: float) -> Tensor:
        checkpoint = torch.utils.checkpoint.checkpoint
        return checkpoint(lambda y: F.dropout(F.elu(y, p), p).sin(), x, use_reentrant=False)

    def twice(x: Tensor, p: float) -> Tensor:
        a = F.elu(x, p)
        return a, F.dropout(a, p).sin()

    def by_mask(x: Tensor, p: float) -> Tensor:
        return F.elu(x[x > 0], p) + F.dropout(x[x > 0], p)

    for program in (within, again, twice, by_mask):
        tagged = jitmagic.jit(lambda x, p, program=program: program(x, p))
        check(program, X, PROBABILITIES, tagged)
        check_counts(tagged)


def test_numbers_of_attributes_and_modules() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.slope = torch.nn.Dropout(0.1), 0.1

        def forward(self, x: Tensor) -> Tensor:
            return F.leaky_relu(self.drop(x), self.slope)

    net, plain = Net(), Net()
    tagged = jitmagic.jit(net)
    for p in PROBABILITIES:
        for one in (net, plain):
            one.drop.p = one.slope = p
        check(lambda x, _: plain(x), X, (p,), lambda x, _: tagged(x))
    check_counts(tagged)


def test_a_number_that_is_read_from_a_tensor() -> None:
    def program(x: Tensor, p: float) -> Tensor:
        return F.elu(x, x.detach().abs().max().item() * p)

    tagged = jitmagic.jit(lambda x, p: program(x, p))
    check(program, X, PROBABILITIES, tagged)
    check_counts(tagged)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, s: F.interpolate(x[None], scale_factor=s + 1),
        lambda x, s: x[:, :3] * torch.arange(s, s + 2.5, 1),
        lambda x, s: x.norm(s + 1),
    ],
    ids=["a size", "how many", "another formula for each"],
)
def test_number_that_decides_a_branch_is_a_constant(program: Program) -> None:
    tagged = jitmagic.jit(lambda x, s: program(x, s))
    check(program, X, (0.5, 0.75, 0.6), tagged)
    assert counts_of(tagged).breaks == 0
    traces = [found for r in handle_of(tagged).journal if (found := r.result("trace"))]
    assert [one.name for one in traces[-1].specialized] == ["s"]
