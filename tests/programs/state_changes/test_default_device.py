"""Calls under a default device: factories make tensors there, and code compiled under another does
not run. The devices of a machine without a GPU: cpu and meta.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import jitmagic

DEVICES = ("cpu", "meta")


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    torch.set_default_device(None)


def factories(x):
    made = (
        torch.zeros(3), torch.ones(2, 2), torch.full((2,), 7.0), torch.arange(4), torch.eye(2),
        torch.linspace(0, 1, 3), torch.empty(0, device=None), torch.scalar_tensor(2.0),
        torch.hann_window(4), torch.tril_indices(2, 2), torch.rand(2), torch.randperm(3),
        torch.randn(2, dtype=torch.float64), torch.randint(0, 3, (2,)),
    )  # fmt: skip
    kept = torch.zeros(2, device="cpu"), x.new_zeros(2), torch.ones_like(x), x * 2, F.relu(x)
    return (*made, *kept)


def described(results):
    return [(t.device, t.dtype, t.shape) for t in results]


def test_factories_make_tensors_there():
    x = torch.ones(2)
    compiled = jitmagic.jit(factories, fullgraph=True)
    for device in (None, *DEVICES, "cpu:0", None, "meta"):
        torch.set_default_device(device)
        torch.manual_seed(0)
        want = factories(x)
        torch.manual_seed(0)
        got = compiled(x)
        assert described(got) == described(want)
        for one, other in zip(got, want, strict=True):
            assert one.is_meta or torch.equal(one, other), device


@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensors_of_python_data(device):
    def program(x):
        return torch.tensor([1.0, 2.0]), torch.as_tensor([1, 2]), torch.asarray([3.0]), x + 1

    torch.set_default_device(device)
    x = torch.ones(2)
    for got, want in zip(jitmagic.jit(program, fullgraph=True)(x), program(x), strict=True):
        assert torch.equal(got, want)
        assert (got.device, got.dtype) == (want.device, want.dtype)


def test_each_device_is_a_variant_and_no_more():
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    compiled = jitmagic.jit(
        lambda x: x.sum() + torch.ones(3, device=x.device).sum(), backend=backend
    )
    for device in (None, "cpu", None, "cpu", "cpu"):
        torch.set_default_device(device)
        assert compiled(torch.ones(2)).item() == 5
    with torch.device("cpu"):
        assert compiled(torch.ones(2)).item() == 5
    assert len(calls) == 2


def test_a_block_inside_of_the_function():
    def program(x):
        with torch.device("meta"):
            y = torch.ones(3)
        return y, torch.ones(2) + x

    for device in (None, *DEVICES):
        torch.set_default_device(device)
        x = torch.ones(2, device=device)
        assert described(jitmagic.jit(program)(x)) == described(program(x))


def nested_blocks(x):
    with torch.device("cpu"):
        with torch.device("meta"):
            inner = torch.zeros(2)
        outer = torch.zeros(2)
        try:
            with torch.device("meta"):
                raise ValueError
        except ValueError:
            after = torch.ones(2)
    return x + outer.sum() + after.sum(), inner, torch.get_default_device()


def set_and_reset(x):
    torch.set_default_device("meta")
    made = torch.zeros(3)
    torch.set_default_device(None)
    return x + torch.ones(3), made, torch.get_default_device()


def set_for_good(x):
    torch.set_default_device("meta")
    return x * 2, torch.ones(2)


@pytest.mark.parametrize("program", [nested_blocks, set_and_reset, set_for_good])
def test_a_default_device_set_inside_is_no_break(program):
    compiled = jitmagic.jit(program, fullgraph=True)
    for _ in range(2):
        seen = []
        for run in (compiled, program):
            torch.set_default_device(None)
            results = run(torch.ones(3))
            after = torch.get_default_device()
            tensors = [r for r in results if isinstance(r, torch.Tensor)]
            seen.append((described(tensors), results[0].tolist(), results[-1:], after))
            torch.set_default_device(None)
        assert repr(seen[0]) == repr(seen[1])


def test_modules_made_inside():
    def program(x):
        layer = torch.nn.Linear(2, 3)
        return layer(x), layer.weight

    for device in (None, *DEVICES):
        torch.set_default_device(device)
        x = torch.ones(1, 2)
        torch.manual_seed(1)
        want = program(x)
        torch.manual_seed(1)
        assert described(jitmagic.jit(program)(x)) == described(want)


def asks(x):
    """Shown to the mode as one call: what it makes inside is not."""
    if torch.overrides.has_torch_function_unary(x):
        return torch.overrides.handle_torch_function(asks, (x,), x)
    return torch.ones(2), x + 1


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("device", [None, *DEVICES])
def test_functions_that_ask_for_modes(device, backend):
    def program(x):
        return (*asks(x), torch.ones(3))

    torch.set_default_device(device)
    x = torch.ones(2, device="cpu")
    for function in (program, asks):
        for _ in range(2):
            assert described(jitmagic.jit(function, backend=backend)(x)) == described(function(x))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("device", [None, *DEVICES])
def test_numbers_that_vary_stay_on_the_cpu(device, backend):
    def program(x, k):
        return x / x.shape[0], x.mean() * x.shape[0] ** 2, x * min(k, 3.5)

    torch.set_default_device(device)
    compiled = jitmagic.jit(program, backend=backend)
    for size in (3, 4, 5, 7):
        x = torch.arange(float(size), device="cpu")
        for got, want in zip(compiled(x, size / 2), program(x, size / 2), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("device", [None, "cpu", "cpu:0", "meta"])
def test_what_tells_the_device(device):
    def program(x):
        return x + 1, torch.get_default_device(), torch._C._len_torch_function_stack()

    torch.set_default_device(device)
    x = torch.ones(2, device="cpu")
    compiled = jitmagic.jit(program)
    for _ in range(2):
        got, want = compiled(x), program(x)
        assert got[1:] == want[1:]


def test_threads_have_one_each():
    compiled = jitmagic.jit(lambda x: torch.ones(2), fullgraph=True)
    torch.set_default_device("meta")
    x = torch.ones(2, device="cpu")
    assert compiled(x).is_meta
    found = []
    thread = threading.Thread(target=lambda: found.append(compiled(x).device.type))
    thread.start()
    thread.join()
    assert found == ["cpu"]
    assert compiled(x).is_meta


def test_gradients_through_tensors_made_there():
    def program(w):
        return (w * torch.arange(3.0)).square().sum()

    torch.set_default_device("cpu")
    one, other = (torch.ones(3, requires_grad=True) for _ in range(2))
    jitmagic.jit(program, fullgraph=True)(one).backward()
    program(other).backward()
    assert torch.equal(one.grad, other.grad)


def test_other_modes_besides_are_left_to_eager():
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    compiled = jitmagic.jit(lambda x: x + torch.ones(2))
    torch.set_default_device("cpu")
    compiled(torch.ones(2))
    x = torch.ones(2)
    with Mode():
        compiled(x)
    assert torch.ones in seen
