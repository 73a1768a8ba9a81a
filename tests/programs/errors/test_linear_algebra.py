"""Linear algebra that raises on data: part of the graph, and its errors are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitmagic

from ..counts import counts_of

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "solve": lambda a: torch.linalg.solve(a, a[:, :2]),
    "inv": torch.linalg.inv,
    "inverse": torch.inverse,
    "inverse of a tensor": lambda a: a.inverse(),
    "cholesky": torch.linalg.cholesky,
    "cholesky_solve": lambda a: torch.cholesky_solve(a, torch.linalg.cholesky(a)),
    "matrix_power": lambda a: torch.linalg.matrix_power(a, -2),
    "lu_factor": lambda a: torch.linalg.lu_factor(a)[0],
    "ldl_factor": lambda a: torch.linalg.ldl_factor(a)[0],
    "tensorsolve": lambda a: torch.linalg.tensorsolve(a, a[0]),
}
RAISING = ("solve", "inv", "inverse", "cholesky", "matrix_power", "tensorsolve")


def _definite(seed: int) -> Tensor:
    m = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return m @ m.T + torch.eye(4, dtype=torch.float64)


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_graph_with_eagers_values_and_gradients(name: str, backend: str) -> None:
    operation = OPERATIONS[name]

    def program(a: Tensor) -> Tensor:
        return operation(a + 1) * 2

    run = jitmagic.jit(program, backend=backend)
    differentiable = name != "ldl_factor"
    for seed in range(3):
        ours = _definite(seed).requires_grad_(differentiable)
        plain = ours.detach().clone().requires_grad_(differentiable)
        found, wanted = run(ours), program(plain)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
        if differentiable:
            found.sum().backward()
            wanted.sum().backward()
            torch.testing.assert_close(ours.grad, plain.grad)
    assert counts_of(run).breaks == 0


@pytest.mark.parametrize("name", RAISING)
def test_what_eager_refuses(name: str) -> None:
    """Also where nobody reads the result, and after a write that has to be undone."""
    operation = OPERATIONS[name]

    def program(a: Tensor, seen: Tensor) -> Tensor:
        seen.add_(1)
        operation(a)
        return a * 2

    run = jitmagic.jit(program)
    seen, plain = torch.zeros(3), torch.zeros(3)
    run(_definite(0), seen)
    program(_definite(0), plain)
    with pytest.raises(RuntimeError) as wanted:
        program(torch.zeros(4, 4), plain)
    with pytest.raises(RuntimeError) as found:
        run(torch.zeros(4, 4), seen)
    assert (type(found.value), str(found.value)) == (type(wanted.value), str(wanted.value))
    assert torch.equal(seen, plain)
    assert torch.equal(run(_definite(1), seen), _definite(1) * 2)


def test_an_error_that_the_program_catches() -> None:
    """A break, as before: with the call in the graph each such error would run all by eager."""

    def program(a: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky(a) * 2
        except torch.linalg.LinAlgError:
            return torch.linalg.eigvalsh(a) + 1

    run = jitmagic.jit(program)
    for a in (_definite(0), -_definite(1), _definite(2)):
        torch.testing.assert_close(run(a), program(a))
    assert counts_of(run).breaks == 1


def test_a_block_around_it_is_no_handler() -> None:
    def program(a: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.linalg.cholesky(a) * 2

    run = jitmagic.jit(program)
    torch.testing.assert_close(run(_definite(0)), program(_definite(0)))
    assert counts_of(run).breaks == 0
