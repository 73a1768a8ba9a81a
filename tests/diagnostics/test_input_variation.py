"""jitmagic.test: programs that are right pass, planted errors are found on small inputs."""

from __future__ import annotations

import itertools
from html import unescape
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.diagnostics.checking import input_variation


def reduced(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x * y + 2).sum(-1)


def normed(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()


def writes(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.exp()


def draws(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)


def number(x: Tensor) -> tuple[Tensor, int, dict[str, Tensor]]:
    return x + 1, x.shape[0], {"sum": x.sum()}


def lookup(table: Tensor, index: Tensor) -> Tensor:
    return table[index]


X = torch.randn(6, 5)
RIGHT: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "reduced": (reduced, (X, torch.randn(6, 5))),
    "normed": (normed, (X,)),
    "writes": (writes, (X,)),
    "draws": (draws, (X,)),
    "number": (number, (X,)),
    "lookup": (lookup, (X, torch.tensor([0, 3, 5]))),
    "module": (nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.BatchNorm1d(3)), (X,)),
    "softmax": (lambda x: torch.softmax(x, -1), (X,)),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_right_programs_pass(name: str, backend: str) -> None:
    fn, args = RIGHT[name]
    before = torch.get_rng_state()
    kept = [a.clone() for a in args]
    n = 40 if backend == "eager" else 10  # each size and dtype is a compile
    found = jitmagic.test(fn, backend=backend)(*args, n=n)
    assert found, str(found)
    assert found.tried == n
    assert all(torch.equal(a, b) for a, b in zip(args, kept, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def _planted(wrong: Any) -> Any:
    """A backend whose code answers wrongly."""

    def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        return lambda *tensors: [wrong(r, tensors) for r in gm.forward(*tensors)]

    return backend


def _far(result: Tensor, _: Any) -> Tensor:
    return result * 1.01


def _only_nan(result: Tensor, _: Any) -> Tensor:
    return result.nan_to_num() if result.is_floating_point() else result


def _only_strided(result: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
    return result if all(x.is_contiguous() for x in tensors) else result + 1


def _only_half(result: Tensor, _: Any) -> Tensor:
    return result.to(torch.float32) if result.dtype == torch.float16 else result


def _only_empty(result: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
    return result if all(x.numel() for x in tensors) else result.to(torch.complex64)


WRONG = {
    "far": (_far, "DIFFERS"),
    "nan": (_only_nan, "nan"),
    "strides": (_only_strided, "strides"),
    "dtype": (_only_half, "float16"),
    "empty": (_only_empty, "complex64"),
}


@pytest.mark.parametrize("name", WRONG)
def test_planted_errors_are_found(name: str) -> None:
    wrong, told = WRONG[name]
    found = jitmagic.test(lambda x: x * 2, backend=_planted(wrong))(X, n=200)
    assert not found
    assert found.failure is not None
    assert told in str(found)
    page = unescape(found._repr_html_())
    assert all(line.strip() in page for line in str(found.failure).splitlines())


def test_the_failing_input_is_small() -> None:
    found = jitmagic.test(lambda x: x * 2, backend=_planted(_far))(torch.randn(9, 8), n=20)
    assert found.failure is not None
    assert found.failure.inputs == ("torch.tensor([[1.0]], dtype=torch.float32)",)


def test_inputs_that_raise_the_same_error_are_counted() -> None:
    def square(x: Tensor) -> Tensor:
        return torch.linalg.inv(x @ x.t() + torch.eye(x.shape[0])) @ x.view(6, -1)

    found = jitmagic.test(square, backend="eager")(X, n=60)
    assert found, str(found)
    assert found.refused


def test_no_verdict_if_every_input_raises() -> None:
    report = jitmagic.test(lambda x: x @ torch.ones(3, 3))(torch.ones(4, 8), n=4)
    assert report.refused == report.tried == 4
    assert ": nothing could be compared (4 inputs" in str(report)


def test_irreproducible_eager_results_are_not_judged() -> None:
    counter = itertools.count()

    def unsteady(x: Tensor) -> Tensor:
        return x + next(counter)

    found = jitmagic.test(unsteady, backend="eager")(X, n=10)
    assert found
    assert found.unsteady


def test_changes_are_of_every_kind() -> None:
    found = jitmagic.test(reduced, backend="eager")(X, X, n=200)
    assert {"as given", "values", "sizes", "layout", "dtype", "requires_grad"} <= found.kinds.keys()
    assert set(input_variation._SPEC_CHANGES) <= found.kinds.keys()


def test_sizes_of_zero_and_one_are_always_tried() -> None:
    seen: set[tuple[int, ...]] = set()

    def sized(x: Tensor, y: Tensor) -> Tensor:
        seen.add(tuple(x.shape))
        return x @ y

    assert jitmagic.test(sized, backend="eager")(torch.randn(3, 5), torch.randn(5, 2), n=7)
    assert {(3, 5), (0, 5), (1, 5), (3, 0), (3, 1)} <= seen
