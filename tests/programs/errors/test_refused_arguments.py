"""Arguments that eager's kernels refuse or read in their own way, and out= (found by
tests/operators)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitmagic
from jitmagic.graph.operators.strictness import check_as_kernels_do
from jitmagic.graph.propagate import EagerRaises

REFUSED = {
    "sum over a dimension twice": lambda x: x.sum((0, 0)),
    "mean over a dimension twice": lambda x: x.mean((1, -1)),
    "amax over a dimension twice": lambda x: x.amax((0, -2)),
    "flip of a dimension twice": lambda x: x.flip((0, 0)),
    "mean to integers": lambda x: x.mean(dtype=torch.int64),
    "huber_loss without a delta": lambda x: F.huber_loss(x, x + 1, delta=0.0),
    "smooth_l1_loss of negative beta": lambda x: F.smooth_l1_loss(x, x + 1, beta=-1.0),
    "threshold of bools": lambda x: F.threshold(x > 0, 0, 1),
    "amax to another dtype": lambda x: torch.amax(x, 0, out=torch.zeros(4, dtype=torch.float64)),
    "group_norm of fewer than no images": lambda x: torch.native_group_norm(
        x, torch.ones(4), torch.zeros(4), -1, 4, 1, 2, 1e-5
    ),
    "group_norm with too many weights": lambda x: torch.native_group_norm(
        x, torch.ones(4), torch.zeros(4), 6, 2, 1, 2, 1e-5
    ),
    "group_norm of less than there is": lambda x: torch.native_group_norm(
        x, torch.ones(4), torch.zeros(4), 2, 4, 1, 2, 1e-5
    ),
    "all to floats": lambda x: torch.all(x, 0, out=torch.zeros(4)),
}
TAKEN = {
    "hardtanh of integers": lambda x: F.hardtanh(x.to(torch.int64), -0.5, 1.5),
    "gradient of smooth_l1_loss of integers": lambda x: torch.ops.aten.smooth_l1_loss_backward(
        *x.long().expand(3, 3, 4), 0, 1.5
    ),
    "hardtanh of bytes": lambda x: F.hardtanh(x.to(torch.uint8), 0.0, 2.7),
    "kron into memory": lambda x: torch.kron(x, x[:2], out=torch.zeros(6, 16)),
    "rank into memory": lambda x: torch.linalg.matrix_rank(
        x, out=torch.zeros((), dtype=torch.long)
    ),
    "sine into float64": lambda x: torch.sin(x, out=torch.zeros(3, 4, dtype=torch.float64)),
    "slice_scatter into memory": lambda x: torch.slice_scatter(
        x, x[:1], 0, 1, 2, out=torch.zeros(3, 4)
    ),
    "fft into memory": lambda x: torch.fft.fft(x, out=torch.zeros(3, 4, dtype=torch.complex64)),
}


def numbers():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(Exception) as plain:  # noqa: PT011 - whatever eager raises
        REFUSED[name](numbers())
    with pytest.raises(type(plain.value)) as ours:
        jitmagic.jit(REFUSED[name])(numbers())
    assert str(ours.value) == str(plain.value)


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name):
    wanted, have = TAKEN[name](numbers()), jitmagic.jit(TAKEN[name])(numbers())
    assert have.dtype is wanted.dtype
    torch.testing.assert_close(have, wanted, rtol=1e-6, atol=1e-6)


def test_out_of_the_caller():
    """What the caller handed in is written, and given back."""
    compiled = jitmagic.jit(lambda x, y, out: torch.kron(x, y, out=out))
    x, out = numbers(), torch.zeros(9, 16)
    assert compiled(x, x, out) is out
    torch.testing.assert_close(out, torch.kron(x, x))


def test_a_mask_larger_than_what_it_masks():
    def masked(x, mask, source):
        return x.masked_scatter(mask, source).sum()

    def gradient(function):
        x = numbers()[0].clone().requires_grad_()
        function(x, numbers() > 0, numbers()).backward()
        return x.grad

    assert torch.equal(gradient(jitmagic.jit(masked)), gradient(masked))


def test_eigenvectors_up_to_a_phase():
    """Eager looks at the numbers and refuses a loss that depends on the phase."""

    def loss(a):
        return torch.linalg.eigh(a).eigenvectors.real.sum()

    a = torch.complex(numbers()[:, :3], numbers()[:, 1:])
    a = (a + a.mH).requires_grad_()
    for function in (loss, jitmagic.jit(loss)):
        with pytest.raises(RuntimeError, match="up to multiplication by"):
            function(a).backward()


@pytest.mark.parametrize("beta", [0, 0.0, 0.5, -0.5])
def test_what_integers_are_divided_by(beta):
    """Eager's vectors divide by what the dtype makes of beta, and end the process at 0."""
    call = torch.empty(9, 8, dtype=torch.int64, device="meta"), 0, beta
    with pytest.raises(EagerRaises, match="divides by it"):
        check_as_kernels_do(
            "smooth_l1_loss_backward", (*call[0].chunk(3), *call[1:]), {}, (), torch.device("cpu")
        )


def test_gradients_of_integers_on_a_gpu():
    """A graph break, whose kernel says that it is not implemented."""
    numbers = torch.empty(3, 4, dtype=torch.int64, device="meta")
    call = "embedding_dense_backward", (numbers, numbers[0], 5, -1, False), {}, ()
    with pytest.raises(EagerRaises, match="integers"):
        check_as_kernels_do(*call, torch.device("cuda"))
    check_as_kernels_do(*call, torch.device("cpu"))


@pytest.mark.parametrize("name", ["add", "mul", "sum", "amax", "matmul"])
def test_no_tensor_is_compared_to_tell_whether_a_kernel_refuses(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch says at length why a tensor is equal to no tuple: 50 us, at each operation."""

    def never(self: torch.Tensor, other: object) -> bool:
        raise AssertionError(f"compared with {other!r}")

    operands = (torch.empty(3, 4, device="meta"), torch.empty(4, 3, device="meta"))
    monkeypatch.setattr(torch.Tensor, "__eq__", never)
    check_as_kernels_do(name, operands, {}, (), torch.device("cpu"))
