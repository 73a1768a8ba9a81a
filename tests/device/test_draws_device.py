"""What a GPU's kernels draw into memory that is not row-major: number for number eager's."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import jitmagic

pytestmark = pytest.mark.device

LAYOUTS = {
    "row-major": lambda: torch.randn(6, 5, 4, 3, device="cuda"),
    "transposed": lambda: torch.randn(3, 4, 5, 6, device="cuda").permute(3, 2, 1, 0),
    "turned": lambda: torch.randn(4, 6, 3, 5, device="cuda").permute(1, 3, 0, 2),
    "channels_last": lambda: torch.randn(6, 5, 4, 3, device="cuda").to(
        memory_format=torch.channels_last
    ),
    "with gaps": lambda: torch.randn(12, 5, 4, 9, device="cuda")[::2, :, :, ::3],
}
DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "dropout in place": lambda x: F.dropout(x, 0.5, True, inplace=True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "feature dropout": lambda x: F.dropout2d(x, 0.5, True),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "like": lambda x: torch.rand_like(x) + x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("draw", DRAWS)
def test_the_numbers_are_eagers(draw: str, layout: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return DRAWS[draw](y) + y, DRAWS[draw](x)

    found = []
    for call in (run, jitmagic.jit(run)):
        torch.manual_seed(5)
        x = LAYOUTS[layout]()
        torch.cuda.manual_seed(7)
        found.append((*call(x), x, torch.rand(3, device="cuda")))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_a_dtype_without_a_kernel_raises_after_what_came_before(dtype: torch.dtype) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> None:
        x.masked_fill_(x > 0, -2.5)
        F.dropout(y, 0.5, True, inplace=True)

    found = []
    for call in (run, jitmagic.jit(run)):
        x, y = torch.ones(3, device="cuda"), torch.ones(3, dtype=dtype, device="cuda")
        with pytest.raises(RuntimeError) as caught:
            call(x, y)
        found.append((x, y, str(caught.value).partition("\n")[0]))
    assert found[0][2] == found[1][2]
    assert torch.equal(found[0][0], found[1][0])


def training(dtype: torch.dtype, *shape: int):
    """Return a step that drops between a product and a norm, and its inputs."""
    torch.manual_seed(5)
    x, r = (torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True) for _ in "xr")
    w = torch.ones(shape[-1], device="cuda", dtype=dtype, requires_grad=True)

    def step(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = F.dropout(F.gelu(x), 0.1) + r
        h = F.layer_norm(h, shape[-1:], w) * torch.rand_like(h)
        return F.dropout(h, 0.3)

    return step, (x, r, w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64, 256), (3, 7, 100), (5000, 1031), (2048, 2048), (9, 9)])
def test_training_drops_the_same_elements(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    step, leaves = training(dtype, *shape)
    found = []
    for call in (step, jitmagic.jit(step, fullgraph=True)):
        torch.cuda.manual_seed(2**40 + 7)
        for _ in range(3):
            for leaf in leaves:
                leaf.grad = None
            out = call(*leaves)
            out.backward(torch.ones_like(out))
        found.append((out.detach(), *(leaf.grad for leaf in leaves), torch.rand(3, device="cuda")))
    eps = torch.finfo(dtype).eps
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=8 * eps, atol=8 * eps * wanted.abs().max())


def test_kernels_draw_without_atens_dropout() -> None:
    step, leaves = training(torch.bfloat16, 512, 512)
    compiled = jitmagic.jit(step)
    compiled(*leaves).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        compiled(*leaves).sum().backward()
        torch.cuda.synchronize()
    assert not [event.key for event in profile.key_averages() if "fused_dropout" in event.key]


def test_an_operand_in_the_midst_of_memory_is_dropped_as_by_eager() -> None:
    """By eager, which is said: which thread of ATen draws for an element depends on it."""
    found = []
    for call in (lambda x: F.dropout(x, 0.5) * 2, jitmagic.jit(lambda x: F.dropout(x, 0.5) * 2)):
        torch.cuda.manual_seed(3)
        memory = torch.ones(4097, device="cuda")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found.append([call(memory[begin : begin + 4096]) for begin in (0, 0, 1, 0)])
    assert "not at a multiple of 16 bytes" in str(seen[-1].message)
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_capture_of_the_user_is_replayed_with_new_numbers() -> None:
    compiled = jitmagic.jit(lambda x: F.dropout(x, 0.5) * 2)
    x = torch.ones(4096, device="cuda")
    compiled(x)
    graph = torch.cuda.CUDAGraph()
    said = pytest.warns(jitmagic.FallbackWarning, match="capture a function compiled with")
    with torch.cuda.graph(graph), said:
        result = compiled(x)
    masks = []
    for _ in range(2):
        graph.replay()
        masks.append(result.clone())
    assert not torch.equal(*masks)
    assert 1500 < (masks[0] == 0).sum() < 2600


def test_recorded_graphs_draw_new_numbers() -> None:
    found = []
    fn = lambda x: F.dropout(torch.sin(x), 0.5) * 2 + 1  # noqa: E731
    for call in (fn, jitmagic.jit(fn, mode="reduce-overhead")):
        torch.cuda.manual_seed(3)
        x = torch.ones(4096, device="cuda")
        found.append([call(x).clone() for _ in range(6)])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)
