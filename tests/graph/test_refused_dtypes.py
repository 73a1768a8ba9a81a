"""Dtypes that eager's kernel refuses are refused at all sizes, whether the result is read or
not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from jitmagic.graph.operators import kernel_refusals
from jitmagic.graph.propagate import EagerRaises
from jitmagic.symbols.probe import Verdict

OPERATIONS: dict[str, Callable[[Tensor], object]] = {
    "cdist": lambda x: torch.cdist(x, x),
    "conv2d": lambda x: F.conv2d(x[None, None], x[:2, :2][None, None]),
    "matmul": lambda x: x @ x.mT,
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout1d": lambda x: F.dropout1d(x, 0.5),  # torch 2.11's meta function promotes
    "feature_dropout": lambda x: torch.feature_dropout(x, 0.5, True),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "unfold": lambda x: F.unfold(x[None, None], 2),
    "max_pool2d": lambda x: F.max_pool2d(x[None, None], 2),
    "nearest": lambda x: F.interpolate(x[None, None], scale_factor=2),
    "bilinear": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "reflect": lambda x: F.pad(x[None, None], (1, 1, 1, 1), mode="reflect"),
    "grid_sample": lambda x: F.grid_sample(x[None, None], x[None, :, :2][:, :, None]),
    "polygamma": lambda x: torch.polygamma(1, x),
    "with logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
    "ranking": lambda x: F.margin_ranking_loss(x, x, x),
    "multilabel": lambda x: F.multilabel_soft_margin_loss(x, x),
    "cosine": lambda x: F.cosine_similarity(x, x),
    "quantile": lambda x: x.quantile(0.5),
    "trapezoid": lambda x: torch.trapezoid(x),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x, x]),
    "chain_matmul": lambda x: torch.linalg.matmul(torch.chain_matmul(x, x), x),
    "vecdot": lambda x: torch.linalg.vecdot(x, x),
}


@pytest.mark.parametrize("size", [4, 132])  # 132: more elements than a stand-in has
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_dead_result_raises_as_eager(operation: str, dtype: torch.dtype, size: int) -> None:
    def run(x: Tensor) -> Tensor:
        OPERATIONS[operation](x)
        return x * 2

    x = torch.ones(size, size, dtype=dtype)
    assert raised(jitmagic.jit(run, backend="eager"), x) == raised(run, x)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("linalg_multi_dot", lambda x: ([x, x, x],)),
        ("linalg_matmul", lambda x: (x, x)),
        ("linalg_vecdot", lambda x: (x, x)),
        ("matmul", lambda x: (x, x)),
    ],
)
def test_integer_products_are_probed_on_a_gpu(
    name: str, args: Callable[[Tensor], tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuBLAS has none. Recorded, they raised in the graph: writes before them were lost."""

    def answer(trial: object, device: str, integer: int = 0) -> Verdict:
        error = NotImplementedError("addmm_cuda")
        return Verdict.fails(error) if device == "cuda" else Verdict.holds()

    monkeypatch.setattr(kernel_refusals._Trial, "run", answer)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    target = getattr(torch.ops.aten, name)
    device = torch.device("cuda", 0)
    for size in (4, 200):
        x = torch.ones(size, size, dtype=torch.int64, device="meta")
        with pytest.raises(EagerRaises, match="addmm_cuda"):
            kernel_refusals.check_dtypes(target, name, args(x), {}, device)
        kernel_refusals.check_dtypes(target, name, args(x.float()), {}, device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("operation", [torch.polar, torch.complex], ids=lambda op: op.__name__)
def test_parts_of_complex_numbers(operation: Callable[..., Tensor], dtype: torch.dtype) -> None:
    def run(x: Tensor) -> Tensor:
        operation(x, x)
        return x * 2

    x = torch.ones(3, dtype=dtype)
    assert raised(jitmagic.jit(run, backend="eager"), x) == raised(run, x)


DRAWS: dict[str, Callable[[Tensor], object]] = {
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "dropout in place": lambda x: F.dropout(x, 0.5, True, inplace=True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "bernoulli": lambda x: torch.bernoulli(x),
    "normal_": lambda x: x.normal_(),
    "exponential_": lambda x: x.exponential_(),
    "multinomial": lambda x: x.multinomial(1),
    "poisson": lambda x: torch.poisson(x),
    "randn_like": lambda x: torch.randn_like(x),
    "rrelu": lambda x: F.rrelu(x, training=True),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("draw", DRAWS)
def test_refused_draw_raises_after_earlier_effects(
    draw: str, dtype: torch.dtype, backend: str
) -> None:
    """And asking its kernel, at compile time, takes no random number from the program."""

    def run(x: Tensor, y: Tensor) -> None:
        x.mul_(3)
        DRAWS[draw](y)

    found = []
    for call in (run, jitmagic.jit(run, backend=backend)):
        torch.manual_seed(1)
        x, y = torch.ones(3), torch.ones(4, 4, dtype=dtype)
        error = raised(call, x, y)
        found.append((error, x.tolist(), y.tolist(), torch.rand(2).tolist()))
    assert found[0] == found[1]


INDEXES: dict[str, object] = {
    "list": [0, 5],
    "in a tuple": (..., [0, 0, 5]),
    "beside a slice": (slice(None), [5]),
    "lists": ([0, 1], [1, 5]),
    "negative": [-4],
    "tensor": torch.tensor([5]),
    "nested": [[0, 5]],
    "of bools": [True],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("index", INDEXES)
def test_a_dead_lookup_raises_as_eager(index: str, backend: str) -> None:
    def run(x: Tensor) -> Tensor:
        x[INDEXES[index]]
        return x * 2

    x = torch.ones(3, 3)
    assert raised(run, x) is IndexError
    assert raised(jitmagic.jit(run, backend=backend), x) is IndexError


def raised(run: Callable[..., object], *inputs: Tensor) -> type[Exception] | None:
    try:
        run(*inputs)
    except Exception as error:  # which one is compared
        return type(error)
    return None
