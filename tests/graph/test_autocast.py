"""Results under autocast on meta tensors have the dtypes that torch's dispatcher gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from jitmagic.graph.autocast_mode import OFF, Autocast, read_autocast
from jitmagic.graph.operators.autocast import CastCache, cast_result
from jitmagic.graph.propagate import EagerRaises

DTYPES = [torch.bfloat16, torch.float16]
CASES: dict[str, Callable[[Tensor], Any]] = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3),
    "add": lambda x: x + x,
    "relu": lambda x: x.relu(),
}


def made_of(mode: Autocast, target: Any, *args: Any, device: str = "cpu", **kwargs: Any) -> Any:
    where = torch.device(device, 0) if device == "cuda" else torch.device(device)
    grad = torch.is_grad_enabled()
    return cast_result(mode, CastCache(), target, args, kwargs, lambda _: where, grad)


def meta(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_autocast_dtypes_equal_eager(name: str, wide: torch.dtype, dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype):
        wanted = CASES[name](torch.ones(4, 4, dtype=wide))
    made = made_of(Autocast(cpu=dtype), CASES[name], meta(4, 4, dtype=wide))
    if made is None:  # autocast changes nothing
        assert wanted.dtype is wide
    else:
        assert (made.dtype, made.shape, made.stride()) == (
            wanted.dtype,
            wanted.shape,
            wanted.stride(),
        )
        assert wanted.dtype is not wide


@pytest.mark.parametrize("name", ["softmax", "sum", "cumsum"])
def test_wider_result_dtype_without_input_cast(name: str) -> None:
    made = made_of(Autocast(cpu=torch.bfloat16), name, meta(4, 4, dtype=torch.bfloat16), 0)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = getattr(torch.ones(4, 4, dtype=torch.bfloat16), name)(0)
    assert (torch.bfloat16 if made is None else made.dtype) is wanted.dtype


def test_each_device_has_a_policy_of_its_own() -> None:
    x = meta(4, 4, dtype=torch.float16)
    half = Autocast(cuda=torch.float16)
    assert made_of(half, "exp", x, device="cuda").dtype is torch.float32  # a list of CUDA's
    assert made_of(Autocast(cpu=torch.float16), "exp", x) is None  # and none of the CPU's
    assert made_of(half, torch.matmul, meta(4, 4), meta(4, 4)) is None
    made = made_of(half, torch.matmul, meta(4, 4), meta(4, 4), device="cuda")
    assert made.dtype is torch.float16


def test_results_require_grad_and_are_non_leaves() -> None:
    x = meta(4, 4, grad=True)
    mode = Autocast(cpu=torch.bfloat16)
    made = made_of(mode, torch.matmul, x, x)
    assert made.requires_grad
    assert not made.is_leaf
    with torch.no_grad():
        assert not made_of(mode, torch.matmul, x, x).requires_grad
    inner = x * 2
    assert made_of(mode, "add_", inner, 1) is None  # writes into what is no leaf are no error
    assert inner._version == 0


def test_errors_under_autocast_equal_eager() -> None:
    with pytest.raises(EagerRaises, match="dtype"):
        made_of(Autocast(cpu=torch.bfloat16), torch.matmul, meta(4, 4), meta(4, 4).double())
    with pytest.raises(EagerRaises, match="cannot multiply"):
        made_of(Autocast(cpu=torch.bfloat16), torch.matmul, meta(4, 4), meta(3, 4))


def test_autocast_mode_of_the_thread_is_restored() -> None:
    assert read_autocast() == OFF
    with torch.autocast("cpu", torch.float16, cache_enabled=True):
        before = read_autocast()
        made_of(Autocast(cpu=torch.bfloat16), torch.matmul, meta(4, 4), meta(4, 4))
        assert read_autocast() == before == Autocast(cpu=torch.float16)
        assert torch.is_autocast_cache_enabled()
