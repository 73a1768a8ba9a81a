"""Calls that meta functions accept and kernels refuse raise as in eager, whether their result is
read or not; also where jitmagic's own kernel would compute a result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

import jitmagic
from jitmagic.graph.devices import MixedDevices, place
from jitmagic.trace import dead_calls
from tests.covering import covered

ones = torch.ones
INTS, DOUBLE, HALF = torch.int32, torch.float64, torch.float16

REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "addmm": lambda x: torch.addmm(x[:1], x[:1], x[:2]),
    "addmv": lambda x: torch.addmv(x[0], x, x[0, :2]),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, ones(5)),
    "select_scatter": lambda x: torch.select_scatter(x, ones(2), 0, 1),
    "select_scatter outside": lambda x: torch.select_scatter(x, ones(3), 0, 7),
    "slice_scatter": lambda x: torch.slice_scatter(x, ones(2, 2)),
    "lu_unpack": lambda x: torch.lu_unpack(x, ones(7, dtype=INTS) * 9),
    "cdist": lambda x: torch.cdist(x, x.double()),
    "cdist of halves": lambda x: torch.cdist(x.half(), x.half()),
    "stft": lambda x: torch.stft(ones(100).half() * x[0, 0].half(), 10, return_complex=True),
    "linspace": lambda x: torch.linspace(x[0, 0] + 0j, x[0, 1], 3, dtype=torch.float32),
    "layer_norm": lambda x: F.layer_norm(x.double(), (3,), ones(3), ones(3)),
    "layer_norm of halves": lambda x: F.layer_norm(x, (3,), ones(3), ones(3, dtype=HALF)),
    "group_norm": lambda x: F.group_norm(x.double(), 3, ones(3), ones(3)),
    "batch_norm": lambda x: F.batch_norm(x.double(), ones(3), ones(3), None, None, True),
    "instance_norm": lambda x: F.instance_norm(x[None].double(), weight=ones(3), bias=ones(3)),
    "mv": lambda x: torch.mv(x, ones(3, dtype=DOUBLE)),
    "max of nothing": lambda x: x[:0, :0].max(-1, keepdim=True)[1],
    "argmin of nothing": lambda x: x[:0, :0].argmin(-1),
    "max of nothing, in a function": lambda x: F.gumbel_softmax(x[:0, :0], hard=True),
    "_softmax_backward_data": lambda x: torch.ops.aten._softmax_backward_data(
        x, x.double(), 1, torch.float32
    ),
}
BEYOND = 1e300  # what float32 does not hold
REFUSED |= {
    "threshold of a large number": lambda x: F.threshold(x, BEYOND, 0.5),
    "value of threshold": lambda x: F.threshold(x, 0.5, BEYOND),
    "padded with a large number": lambda x: F.pad(x, (1, 1), value=BEYOND),
    "a large margin": lambda x: F.hinge_embedding_loss(x, ones(3, 3), margin=BEYOND),
    "a large epsilon": lambda x: F.cosine_similarity(x, x + 1, eps=BEYOND),
    "a large slope": lambda x: F.leaky_relu(x, BEYOND),
    "full of a large number": lambda x: torch.full((2,), BEYOND),
    "full of halves": lambda x: torch.full((2,), 65536.0, dtype=HALF),
    "full of bytes": lambda x: torch.full((2,), 300, dtype=torch.uint8),
    "full of negative bytes": lambda x: torch.full((2,), -300, dtype=torch.int8),
    "full of nan": lambda x: torch.full((2,), float("nan"), dtype=INTS),
    "new_full": lambda x: x.new_full((2,), BEYOND),
    "full_like": lambda x: torch.full_like(x, 65536.0, dtype=HALF),
    "scalar_tensor": lambda x: torch.scalar_tensor(BEYOND),
    "scalar_tensor of bytes": lambda x: torch.scalar_tensor(300, dtype=torch.uint8),
    "linspace to a large number": lambda x: torch.linspace(0, BEYOND, 3),
    "arange of halves": lambda x: torch.arange(0, BEYOND, BEYOND, dtype=HALF),
    "where with a large number": lambda x: torch.where(x > 0, x, BEYOND),
}
BACKENDS: dict[str, dict[str, Any]] = {
    "native": {},
    "blocks": {"options": {"cpu_tier": "blocks"}},
    "numba": {"options": {"cpu_tier": "numba"}},
    "aot_eager": {"backend": "aot_eager"},
    "eager": {"backend": "eager"},
}


def error_of(run: Callable[[Tensor], Any], x: Tensor) -> tuple[type, str] | None:
    try:
        run(x)
    except Exception as error:
        return type(error), str(error)
    return None


@covered(name=REFUSED, read=[True, False], backend=BACKENDS)
def test_a_call_that_a_kernel_refuses_raises(name: str, read: bool, backend: str) -> None:
    refused = REFUSED[name]

    def program(x: Tensor) -> Any:
        y = x * 2
        result = refused(y)
        return result if read else y + 1

    run = jitmagic.jit(program, **BACKENDS[backend])
    expected = error_of(program, ones(3, 3))
    assert expected is not None
    for _ in range(2):
        assert error_of(run, ones(3, 3)) == expected


def test_large_tensors_of_mixed_dtypes_are_probed() -> None:
    def program(x: Tensor) -> Tensor:
        return F.layer_norm(x.double(), (3000,), ones(3000), ones(3000))

    x = ones(30, 3000)
    expected = error_of(program, x)
    assert expected is not None
    assert error_of(jitmagic.jit(program), x) == expected


DEAD: dict[str, Callable[[Tensor], Any]] = {
    "lu_unpack": lambda x: torch.lu_unpack(x, torch.tensor([1, 2, 3], dtype=INTS)),
    "cdist": lambda x: torch.cdist(x, x),
    "layer_norm": lambda x: F.layer_norm(x.half(), (3,), ones(3).half()),
    "gather": lambda x: x.gather(0, ones(3, 3, dtype=torch.int64)),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "topk": lambda x: x.topk(2),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "bf16 norm": lambda x: F.layer_norm(x.bfloat16(), (3,), ones(3), ones(3)),
}


@pytest.mark.parametrize("name", DEAD)
def test_valid_unused_call_adds_no_break(name: str) -> None:
    unread = DEAD[name]

    def program(x: Tensor) -> Tensor:
        unread(x)
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = jitmagic.jit(program, fullgraph=True)
        assert torch.equal(run(ones(3, 3)), ones(3, 3) + 1)


def test_gpu_kernel_accepts_one_cpu_scalar() -> None:
    gpu = torch.device("cuda", 0)
    x, a, b = (torch.empty(shape, device="meta") for shape in ((3,), (), ()))
    devices = {id(x): gpu, id(a): torch.device("cpu"), id(b): torch.device("cpu")}

    def place_of(name: str, *args: Tensor) -> torch.device:
        return place(name, args, {}, lambda tensor: devices[id(tensor)]).device

    assert place_of("addcmul", x, x, a) == gpu
    assert place_of("where", x, a, b) == gpu  # which copies them
    for args in ((x, a, b), (x, a, a)):
        with pytest.raises(MixedDevices, match="tensors on cpu and cuda:0"):
            place_of("addcmul_", *args)


class Counter:
    """Records the effects of a program before the call that raises."""

    def __init__(self, refused: Callable[[Tensor], Any]) -> None:
        self.calls, self.refused = 0, refused

    def run(self, x: Tensor, seen: list[int]) -> Any:
        x.flatten().add_(1)
        self.calls += 1
        seen.append(self.calls)
        return self.refused(x + 1)


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", REFUSED)
def test_effects_before_a_refused_call_remain(name: str, backend: str) -> None:
    def observed(tag: Callable[..., Any]) -> list[Any]:
        counter = Counter(REFUSED[name])
        run, made = tag(counter.run), []
        for _ in range(2):
            x, seen = ones(3, 3), [0]
            error = error_of(lambda x, seen=seen: run(x, seen), x)  # type: ignore[misc]
            made.append((error, counter.calls, seen, x.tolist()))
        return made

    assert observed(lambda fn: jitmagic.jit(fn, **BACKENDS[backend])) == observed(lambda fn: fn)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1, 4, 2, 0), (0, 4, 2, 2), (2, 0, 4, 4)])
def test_pixel_unshuffle_of_empty_tensor_runs_in_eager(
    shape: tuple[int, ...], backend: str
) -> None:
    """pixel_unshuffle, whose meta function does not."""
    x = torch.zeros(shape)
    run = jitmagic.jit(lambda x: F.pixel_unshuffle(x, 2) + 1, **BACKENDS[backend])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(x).shape == F.pixel_unshuffle(x, 2).shape


@pytest.mark.parametrize("written", [False, True])
def test_dead_getitems_are_not_probed_one_by_one(
    written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time all of them would be looked at: minutes for thousands of parts."""
    asked: list[Node] = []
    monkeypatch.setattr(dead_calls, "_refusal", asked.append)

    def last(x: Tensor) -> Tensor:
        if written:
            x.mul_(2)
        return x.split(2)[-1] + 1

    assert torch.equal(jitmagic.jit(last)(ones(64)), last(ones(64)))
    assert len(asked) == (2 if written else 0), "the write and the sum"
