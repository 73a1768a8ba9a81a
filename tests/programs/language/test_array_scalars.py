"""Numbers of numpy next to tensors are constants of the trace, guarded by type and bits."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from tests.covering import covered

from ..counts import counts_of

np = pytest.importorskip("numpy")

NUMBERS = [
    np.float64(2.5), np.float32(0.1), np.int64(3), np.int32(-2), np.uint8(7), np.float64(-0.0),
    np.float32(math.nan), np.float64(math.inf), np.bool_(True),
]  # fmt: skip


class Attention(nn.Module):
    """Compute scales as user code usually does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.heads = nn.Linear(8, 8), 1 / np.sqrt(8), np.int64(2)

    def forward(self, x: Tensor) -> Any:
        q = self.layer(x)
        q *= np.sqrt(self.heads * 2)
        scores = q @ q.T * self.scale / np.sqrt(q.size(-1))
        flat = x.reshape(np.prod(x.shape)).sum()
        return scores.softmax(-1), flat, np.prod(x.shape), float(np.log(2.0)), np.lcm(4, 6)


def product(x: Tensor, s: Any) -> Any:
    return x * s, s + x, x.clamp(max=float(s)), torch.tensor(s), s == s, float(s)


def taken(x: Tensor, s: Any) -> Any:
    return x[: s + 1], x.reshape(-1)[s], range(s)[-1], x.sum(s)


def alike(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, Tensor):
        assert got.dtype is wanted.dtype
        torch.testing.assert_close(got, wanted, equal_nan=True)
    elif isinstance(wanted, tuple):
        for a, b in zip(got, wanted, strict=True):
            alike(a, b)
    else:
        assert repr(got) == repr(wanted)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_scales_of_a_module_are_constants(backend: str) -> None:
    model = Attention()
    compiled = jitmagic.jit(model.forward, backend=backend, fullgraph=True)
    for x in (torch.randn(4, 8), torch.randn(4, 8)):
        alike(compiled(x), model.forward(x))
    model.scale = np.float32(0.5)
    alike(compiled(torch.ones(4, 8)), model.forward(torch.ones(4, 8)))


class Sizes:
    """Read numbers as configurations hold them."""

    width, plan, rate = 32, [3, 5], 0.5


def of_what_was_read(x: Tensor, sizes: Sizes) -> Any:
    made = np.zeros((2, np.sum(sizes.plan[:1])), dtype=np.int32)
    scaled = x / np.sqrt(sizes.width) + np.log(sizes.rate) * x
    scaled *= np.mean(sizes.plan)
    return scaled, x * np.max([1, 2]), torch.tensor(made), x.reshape(np.prod(x.shape))


def of_data(x: Tensor, array: Any) -> Any:
    """Put data-dependent scalars on either side of a tensor."""
    top, low = array.max(), array[0]
    y = x * top
    y -= low
    return top * x, low - x, x / top, y, torch.where(x > 0, x, low), torch.tensor(top), top


def compared_with_data(x: Tensor, array: Any) -> Any:
    """Calls that need the number itself may break, but are right."""
    top, low = array.max(), array[0]
    filled = torch.full((2,), top), x.clamp(max=low * 2)
    return x**2 % top, x < top, top <= x, x == low, filled


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_arithmetic_on_scalars_that_were_read_is_constant(backend: str) -> None:
    compiled = jitmagic.jit(of_what_was_read, backend=backend, fullgraph=True)
    sizes = Sizes()
    for width, plan, rate in ((32, [3, 5], 0.5), (8, [2, 2, 4], 2.0), (9, [1], 0.1)):
        sizes.width, sizes.plan, sizes.rate = width, plan, rate
        x = torch.randn(3, 4)
        alike(compiled(x, sizes), of_what_was_read(x, sizes))


@covered(
    kind=[torch.float32, torch.bfloat16, torch.int64],
    dtype=[np.float64, np.float32, np.int64, np.int32, np.uint8],
    backend=["eager", "native"],
)
def test_tensors_treat_numpy_scalars_as_numbers(
    dtype: Any, kind: torch.dtype, backend: str
) -> None:
    compiled = jitmagic.jit(of_data, backend=backend)
    for values in ([1, 3, 2], [5, 7, 7]):
        x, array = torch.tensor([[1.5, -2, 3], [0, 4, -0.0]]).to(kind), np.array(values, dtype)
        try:
            wanted = of_data(x.clone(), array)
        except RuntimeError as error:  # an integer tensor is not scaled in place
            with pytest.raises(RuntimeError, match="can't be cast"):
                compiled(x.clone(), array)
            assert "can't be cast" in str(error)
        else:
            alike(compiled(x.clone(), array), wanted)
            assert counts_of(compiled).breaks == 0 or kind is not torch.float32
        jitted = jitmagic.jit(compared_with_data, backend=backend)
        alike(jitted(x.clone(), array), compared_with_data(x.clone(), array))


def test_gradient_flows_through_arithmetic_with_a_scalar() -> None:
    def loss(x: Tensor, array: Any) -> Any:
        return (array.mean() * x / array.max()).sum()

    compiled = jitmagic.jit(loss, fullgraph=True)
    for array in (np.array([1.0, 2.0]), np.array([-1.0, 0.5])):
        x, y = (torch.arange(3.0).requires_grad_() for _ in range(2))
        compiled(x, array).backward()
        loss(y, array).backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_scalar_argument_is_guarded_by_its_bits(number: Any) -> None:
    compiled = jitmagic.jit(product, backend="eager")
    x = torch.tensor([0.0, -0.0, 1.5, -2.0])
    for each in (number, type(number)(number), type(number)(1), number):
        alike(compiled(x, each), product(x, each))
    assert counts_of(compiled).breaks == 0 or type(number) is np.bool_


def test_an_integer_is_an_index() -> None:
    compiled = jitmagic.jit(taken, backend="eager", fullgraph=True)
    for number in (np.int64(1), np.int32(1), np.uint8(1)):
        x = torch.randn(3, 3)
        alike(compiled(x, number), taken(x, number))


@pytest.mark.filterwarnings("error")
def test_numpy_emits_its_own_warnings() -> None:
    def overflowing(x: Tensor) -> Any:
        return x * 2, np.float32(3e38) * np.float32(10)

    compiled = jitmagic.jit(overflowing)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="overflow"):
            compiled(torch.ones(2))


def test_silent_log_in_a_cached_function_is_not_a_break() -> None:
    logger = logging.getLogger("jitmagic.tests.silent")
    logger.setLevel(logging.ERROR)

    @functools.lru_cache(None)
    def once(self: logging.Logger, text: str) -> None:
        self.warning(text)

    def told(x: Tensor) -> Tensor:
        once(logger, f"a shape {tuple(x.shape)}")
        return x + 1

    compiled: Callable[..., Tensor] = jitmagic.jit(told, fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert once.cache_info().misses == 1


def assigned(x: Tensor, s: Any) -> Tensor:
    y = x.clone()
    y[..., 0] = s
    y[1:] = np.log(np.exp(1.5) - 1)
    return y


@pytest.mark.parametrize("kind", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("number", [np.float64(2.5), np.int64(3), np.uint8(7)], ids=repr)
def test_a_number_of_numpy_is_assigned(number: Any, kind: torch.dtype) -> None:
    x = torch.zeros(3, 2, dtype=kind)
    alike(jitmagic.jit(assigned, fullgraph=True)(x, number), assigned(x, number))


@pytest.mark.parametrize("number", [np.float32(2.5), np.bool_(True)], ids=repr)
def test_scalar_that_tensors_refuse_raises_as_in_eager(number: Any) -> None:
    for run in (assigned, jitmagic.jit(assigned)):
        with pytest.raises(TypeError, match="can't assign a numpy"):
            run(torch.zeros(3, 2), number)


TOO_LARGE: dict[str, Callable[[Tensor, Any], Any]] = {
    "operator": lambda x, n: x * n,
    "reflected": lambda x, n: n * x,
    "quotient": lambda x, n: n / x,
    "equal": lambda x, n: x == n,
    "function": lambda x, n: torch.mul(x, n),
    "in place": lambda x, n: x.clone().mul_(n),
    "filled": lambda x, n: torch.full_like(x, n),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_numpy_computes_ints_beyond_int64(name: str) -> None:
    """torch refuses such an int; numpy's operators make arrays of tensors, or refuse."""
    fn = TOO_LARGE[name]
    compiled = jitmagic.jit(fn)
    for number in (np.uint64(3), np.uint64(2**63 - 1), np.uint64(2**63), np.uint64(2**64 - 1)):
        x = torch.ones(2)
        try:
            wanted = fn(x, number)
        except TypeError as error:
            with pytest.raises(TypeError) as raised:
                compiled(x, number)
            assert str(raised.value) == str(error)
        else:
            alike(compiled(x, number), wanted)
