"""Tensors found in a dictionary under a str that differs from call to call: one variant serves all
keys whose tensors are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of

Tensors = dict[str, Tensor]
KEYS = [f"k{i}" for i in range(12)]


def found(d: Tensors, k: str, x: Tensor) -> Any:
    return x * d[k]


def found_itself(d: Tensors, k: str, x: Tensor) -> Any:
    return d[k]


def written(d: Tensors, k: str, x: Tensor) -> Any:
    d[k].add_(1)
    return x * d[k]


def differentiated(d: Tensors, k: str, x: Tensor) -> Any:
    loss = (x * d[k]).square().sum()
    loss.backward()
    return loss.detach()


def compared(d: Tensors, k: str, x: Tensor) -> Any:
    return d[k] is d["k3"], x * d[k]


def written_under_another(d: Tensors, k: str, x: Tensor) -> Any:
    x = x * d[k]
    with torch.no_grad():
        d["k5"].mul_(2)
    return x + d[k]


def two(d: Tensors, k: str, x: Tensor) -> Any:
    other = KEYS[-1] if k == KEYS[0] else KEYS[0]
    return d[k] - d[other]


def several(d: Tensors, k: str, x: Tensor) -> Any:
    return sum(x * d[key] for key in (k, "k1"))


def replaced(d: Tensors, k: str, x: Tensor) -> Any:
    d["k3"] = x
    return d[k] * 2


def absent(d: Tensors, k: str, x: Tensor) -> Any:
    try:
        return x * d[k]
    except KeyError:
        return x - 1


# How many variants there are: of the last ones each looks at the key itself.
PROGRAMS: Sequence[tuple[Callable[..., Any], int]] = [
    (found, 1), (found_itself, 1), (written, 1), (differentiated, 2), (compared, 2),
    (written_under_another, 2), (several, 2), (absent, 2), (two, 9), (replaced, 9),
]  # fmt: skip


def table(program: Callable[..., Any]) -> Tensors:
    torch.manual_seed(0)
    needs = program is differentiated
    return {key: torch.randn(4, dtype=torch.float64, requires_grad=needs) for key in KEYS}


@pytest.mark.parametrize(("program", "most"), PROGRAMS, ids=[p.__name__ for p, _ in PROGRAMS])
@pytest.mark.filterwarnings("ignore:.*was compiled 8 times")
def test_variants_are_for_tensors_not_for_keys(program: Callable[..., Any], most: int) -> None:
    made, tables = jitmagic.jit(program), [table(program), table(program)]
    for place in (*range(len(KEYS)), 3, 5, 0, 11):
        key = "none" if program is absent and place % 5 == 4 else KEYS[place]
        x = torch.randn(4, dtype=torch.float64)
        results = [fn(d, key, x) for fn, d in zip((made, program), tables, strict=True)]
        torch.testing.assert_close(*results)
        if program is found_itself:
            assert results[0] is tables[0][key]
        torch.testing.assert_close(*tables)
        torch.testing.assert_close(*({k: t.grad for k, t in d.items()} for d in tables))
    traced = [r for r in handle_of(made).journal if r.result("trace") is not None]
    assert len(traced) <= most


def test_other_tensors_and_other_texts_are_other_variants() -> None:
    class Text(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            return str(other) == "b"

    d = {"a": torch.ones(3), "b": torch.ones(3) * 2, "c": torch.ones(5), "d": torch.ones(3).int()}
    made = jitmagic.jit(found)
    for key in ("a", "b", "c", "d", "a", Text("b"), "c"):
        assert torch.equal(made(d, key, torch.ones(1)), d[key])
        assert made(d, key, torch.ones(1)).dtype == (torch.ones(1) * d[key]).dtype
    with pytest.raises(KeyError, match="none"):
        made(d, "none", torch.ones(1))
