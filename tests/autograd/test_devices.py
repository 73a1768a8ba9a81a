"""Joint graphs of tensors on a GPU that is not there: layouts of its kernels, writes across."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.fx import GraphModule, symbolic_trace

from jitmagic.autograd.decompose import TABLE
from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.recording.functionalize import Functionalizer
from jitmagic.autograd.recording.recorder import Recorder
from jitmagic.spec import TensorSpec

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten


def spec(
    shape: tuple[int, ...],
    device: torch.device = CUDA,
    dtype: torch.dtype = torch.float32,
    last: bool = False,
) -> TensorSpec:
    format = torch.channels_last if last else torch.contiguous_format
    like = torch.empty(shape, device="meta", memory_format=format)
    return TensorSpec(shape, like.stride(), dtype, device, requires_grad=False, is_leaf=True)


def joint(fn: Callable[..., object], *given: TensorSpec) -> GraphModule:
    return trace_joint(symbolic_trace(fn), given).module


def result(module: GraphModule) -> TensorSpec:
    (node,) = next(n for n in module.graph.nodes if n.op == "output").args[0]
    return node.meta["spec"]


@pytest.mark.parametrize(("device", "last"), [(CUDA, False), (CPU, True)], ids=str)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (F.conv2d(x, w),),
        lambda x, w: (F.interpolate(F.conv2d(x, w), size=(3, 5), mode="nearest-exact"),),
        lambda x, w: (x.roll(1, 2),),
        lambda x, w: (F.pixel_unshuffle(x, 2),),
    ],
)
def test_each_device_has_layouts_of_its_own(
    fn: Callable[..., object], device: torch.device, last: bool
) -> None:
    """Without cuDNN (as here), and of float64, no kernel of a GPU keeps channels_last."""
    given = spec((2, 4, 6, 8), device, torch.float64, last=True)
    made = result(joint(fn, given, spec((4, 4, 2, 2), device, torch.float64)))
    format = torch.channels_last if last else torch.contiguous_format
    assert made.stride == torch.empty(made.shape, memory_format=format).stride()


@pytest.mark.parametrize(("to", "source"), [(CUDA, CPU), (CPU, CUDA)], ids=str)
@pytest.mark.parametrize("name", ["fill_", "copy_"])
def test_what_is_written_comes_from_anywhere(
    name: str, to: torch.device, source: torch.device
) -> None:
    if name == "copy_" and to == CUDA:
        pytest.skip("torch itself asks for the GPU")
    module = joint(lambda x, c: (getattr(x.clone(), name)(c),), spec((3, 4), to), spec((), source))
    (copy,) = [n for n in module.graph.nodes if n.target is aten._to_copy.default]
    assert copy.kwargs["device"] == to
    assert result(module).device == to


def test_numbers_that_torch_wraps_are_made_where_they_are_written() -> None:
    """`x[0] = 5.0` hands a tensor of the CPU to the operator, whatever x lives on."""
    wrapped = torch.tensor(5.0)

    def fill(x):
        y = x.clone()
        y.fill_(wrapped)
        return (y,)

    recorder = Recorder(TABLE)
    mode = Functionalizer(recorder)
    target = mode.input(0, "x", spec((3, 4)))
    with mode:
        fill(target)
    nodes = list(recorder.graph.nodes)
    assert not [n for n in nodes if n.op == "get_attr"]
    (number,) = [n for n in nodes if n.target is aten.full.default]
    assert (number.args, number.meta["spec"].device) == (([], 5.0), CUDA)


def _moments_by_welford(row: torch.Tensor) -> torch.Tensor:
    """The mean of the squares as CUDA's kernel has it of rows that it cannot read in fours."""
    mean, spread = row.new_zeros(()), row.new_zeros(())
    for n, value in enumerate(row, 1):
        delta = value - mean
        mean = mean + delta / n
        spread = spread + delta * (value - mean)
    return spread / len(row) + mean * mean


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 4, 7, 8])
def test_rows_with_infinities_in_rms_norm(length: int, dtype: torch.dtype) -> None:
    """NaN for the whole row, or for the infinity alone: it hangs on the kernel that a row gets."""
    inf, nan = float("inf"), float("nan")
    x = torch.randn(6, length).to(dtype)
    for row, (place, value) in enumerate([(0, inf), (-1, -inf), (length // 2, nan), (0, -inf)]):
        x[row, place] = value
    recorder = Recorder(TABLE)  # the operator is one where torch was built for a GPU
    given = recorder.placeholder("x", spec((6, length), dtype=dtype))
    normal, _ = TABLE[aten._fused_rms_norm.default](recorder, given, [length], None, 1e-6)
    recorder.graph.output(normal.node)
    result = GraphModule(torch.nn.Module(), recorder.graph)(x)
    wide = x if dtype is torch.float64 else x.float()
    by_fours = length % 4 == 0 and dtype is not torch.float64
    rows = [(r * r).mean() if by_fours else _moments_by_welford(r) for r in wide]
    expected = wide * (torch.stack(rows).unsqueeze(1) + 1e-6).rsqrt()
    torch.testing.assert_close(result, expected.to(dtype), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [(3,), (2, 5), ()])
@pytest.mark.parametrize("has_weight", [True, False])
def test_gradients_of_rms_norm(has_weight: bool, rows: tuple[int, ...], dtype: torch.dtype) -> None:
    """The sizes that the formula hands on are not looked at: those that vary are no numbers."""
    grad, x = (torch.randn(*rows, 8).to(dtype) for _ in range(2))
    weight = torch.randn(8).to(dtype) if has_weight else None
    rstd = (x.to(torch.float64).square().mean(-1, True) + 1e-6).rsqrt()
    rstd = rstd if dtype is torch.float64 else rstd.float()
    given = {"grad": grad, "x": x, "rstd": rstd, "weight": weight}
    recorder = Recorder(TABLE)
    syms = {
        name: None if t is None else recorder.placeholder(name, spec(tuple(t.shape), dtype=t.dtype))
        for name, t in given.items()
    }
    made = TABLE[aten._fused_rms_norm_backward.default](
        recorder, syms["grad"], syms["x"], [-(2**62) - 5], syms["rstd"], syms["weight"], [True] * 2
    )
    recorder.graph.output(tuple(None if sym is None else sym.node for sym in made))
    module = GraphModule(torch.nn.Module(), recorder.graph)
    results = module(*(t for t in given.values() if t is not None))

    leaves = [t.to(torch.float64).requires_grad_() for t in (x, weight) if t is not None]
    normal = leaves[0] * (leaves[0].square().mean(-1, True) + 1e-6).rsqrt()
    exact = torch.autograd.grad(
        normal * leaves[-1] if has_weight else normal, leaves, grad.double()
    )
    bound = {torch.bfloat16: 2e-2}.get(dtype, 1e-5)
    for got, wanted in zip([r for r in results if r is not None], exact, strict=True):
        assert got.dtype is dtype
        torch.testing.assert_close(got.double(), wanted, rtol=bound, atol=bound)
