"""Functions of np.linalg in a tagged function: numpy's values, dtypes, layouts and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import jitmagic
from jitmagic.api import handle_of

L = np.linalg
_RANDOM = np.random.RandomState(0)
SQUARE = _RANDOM.randn(4, 4)
DEFINITE = SQUARE @ SQUARE.T + 4 * np.eye(4)
TALL, VECTOR, COLUMNS, BATCH = (_RANDOM.randn(*s) for s in ((5, 3), (4,), (4, 2), (3, 4, 4)))
FIVE = _RANDOM.randn(5)

CALLS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "norm": (lambda a: L.norm(a), (SQUARE,)),
    "norm, ord 1": (lambda a: L.norm(a, 1), (SQUARE,)),
    "norm, ord 2": (lambda a: L.norm(a, 2), (SQUARE,)),
    "norm, nuclear": (lambda a: L.norm(a, "nuc"), (TALL,)),
    "norm of rows": (lambda a: L.norm(a, axis=1, keepdims=True), (SQUARE,)),
    "norm, ord -inf": (lambda a: L.norm(a, -np.inf), (VECTOR,)),
    "norm of float32": (lambda a: L.norm(a), (SQUARE.astype(np.float32),)),
    "solve": (lambda a, b: L.solve(a, b), (DEFINITE, VECTOR)),
    "solve, columns": (lambda a, b: L.solve(a, b), (DEFINITE, COLUMNS)),
    "inv": (lambda a: L.inv(a), (DEFINITE,)),
    "inv of a batch": (lambda a: L.inv(a), (BATCH,)),
    "inv of integers": (lambda a: L.inv(a), (np.array([[2, 1], [1, 3]]),)),
    "inv of float32": (lambda a: L.inv(a), (DEFINITE.astype(np.float32),)),
    "inv, Fortran order": (lambda a: L.inv(a), (np.asfortranarray(DEFINITE),)),
    "det": (lambda a: L.det(a) * 2, (DEFINITE,)),
    "det of a batch": (lambda a: L.det(a), (BATCH,)),
    "slogdet": (lambda a: L.slogdet(a), (DEFINITE,)),
    "slogdet's fields": (lambda a: L.slogdet(a)[1] + 1, (BATCH,)),
    "eigh": (lambda a: L.eigh(a), (DEFINITE,)),
    "eigh, upper": (lambda a: L.eigh(a, UPLO="U")[1] @ a, (SQUARE,)),
    "eigvalsh": (lambda a: L.eigvalsh(a), (DEFINITE,)),
    "svd": (lambda a: L.svd(a), (TALL,)),
    "svd, thin": (lambda a: L.svd(a, full_matrices=False)[0].sum(0), (TALL,)),
    "singular values": (lambda a: L.svd(a, compute_uv=False), (TALL,)),
    "qr": (lambda a: L.qr(a), (TALL,)),
    "r of qr": (lambda a: L.qr(a, mode="r"), (TALL,)),
    "cholesky": (lambda a: L.cholesky(a), (DEFINITE,)),
    "lstsq": (lambda a, b: L.lstsq(a, b, rcond=None), (TALL, FIVE)),
    "lstsq of no full rank": (lambda a, b: L.lstsq(a, b, rcond=None), (np.ones((5, 3)), FIVE)),
    "matrix_power": (lambda a: L.matrix_power(a, 3), (SQUARE,)),
    "matrix_power, inverse": (lambda a: L.matrix_power(a, -2), (DEFINITE,)),
    "matrix_rank": (lambda a: L.matrix_rank(a), (np.ones((4, 4)),)),
    "pinv": (lambda a: L.pinv(a), (np.ones((4, 3)),)),
    "cond": (lambda a: L.cond(a), (DEFINITE,)),
    "multi_dot": (lambda a, b: L.multi_dot([a, a, b]), (SQUARE, COLUMNS)),
    "einsum": (lambda a, b: np.einsum("ij,jk->ik", a, b), (SQUARE, COLUMNS)),
    "tensordot": (lambda a, b: np.tensordot(a, b, axes=1), (BATCH, SQUARE)),
    "inv of a list": (lambda a: L.inv([[2.0, 1.0], [1.0, 3.0]]) @ a[:2, :2], (SQUARE,)),
    "inv of a transposed part": (lambda a: L.inv(a[:3, 1:].T), (SQUARE,)),
    "inv of complex numbers": (lambda a: L.inv(a.astype(np.complex128) * 1j), (DEFINITE,)),
    "first power": (lambda a: L.matrix_power(a, 1), (SQUARE,)),
    "of nothing": (lambda a: L.svd(a[:0]), (TALL,)),
    "around tensors": (
        lambda a: torch.from_numpy(L.inv(a)).sin() + torch.from_numpy(a).sum(),
        (DEFINITE,),
    ),
}
NOT_ONE_GRAPH = {"lstsq of no full rank", "inv of a list", "first power"}


def same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, tuple):
        for one, other in zip(actual, expected, strict=True):
            same(one, other)
        return
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if isinstance(expected, np.ndarray):
        assert actual.strides == expected.strides
    tolerance = 1e-5 if expected.dtype.itemsize == 4 else 1e-11
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_numpy(name: str) -> None:
    function, arrays = CALLS[name]
    tagged = jitmagic.jit(function, fullgraph=name not in NOT_ONE_GRAPH)
    for _ in range(10):  # a node that always raised would be given up, with a warning
        same(tagged(*(one.copy("K") for one in arrays)), function(*arrays))


def _refused(a: np.ndarray, log: list[str], of: str) -> Any:
    a = a + 0
    try:
        return getattr(L, of)(a)
    except L.LinAlgError as error:
        log.append(str(error))
        return a.sum()


@pytest.mark.parametrize("of", ["inv", "cholesky", "svd", "eigh", "det", "slogdet", "pinv"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_errors_are_those_of_numpy(of: str, value: float) -> None:
    tagged = jitmagic.jit(_refused)
    for matrix in (DEFINITE, np.full((4, 4), value), DEFINITE):
        logs: tuple[list[str], list[str]] = ([], [])
        with np.errstate(all="ignore"):
            same(tagged(matrix, logs[0], of), _refused(matrix, logs[1], of))
        assert logs[0] == logs[1]


def test_an_error_comes_from_the_line_of_the_program() -> None:
    @jitmagic.jit
    def inverse(a: np.ndarray, seen: dict[str, Any]) -> Any:
        a *= 2
        seen["began"] = True
        return L.inv(a)

    inverse(DEFINITE.copy(), {})
    singular, seen = np.ones((4, 4)), {}
    with pytest.raises(L.LinAlgError, match="Singular matrix"):
        inverse(singular, seen)
    assert seen == {"began": True}
    assert singular.tolist() == np.full((4, 4), 2.0).tolist()


def test_shapes_that_are_refused_raise_as_in_numpy() -> None:
    for call, arrays in (
        (lambda a: L.inv(a), (TALL,)),
        (lambda a: L.cholesky(a), (VECTOR,)),
        (lambda a, b: L.solve(a, b), (DEFINITE, FIVE)),
    ):
        with pytest.raises((L.LinAlgError, ValueError)) as expected:
            call(*arrays)
        with pytest.raises(type(expected.value)) as actual:
            jitmagic.jit(call)(*arrays)
        assert str(actual.value) == str(expected.value)


def test_sizes_that_vary() -> None:
    def whiten(x: np.ndarray) -> Any:
        centred = x - x.mean(0)
        values, vectors = L.eigh(centred.T @ centred / len(x))
        return centred @ vectors / np.sqrt(values + 1e-3)

    tagged = jitmagic.jit(whiten)
    for rows in (10, 20, 31, 64):
        x = np.random.RandomState(rows).randn(rows, 3)
        same(tagged(x), whiten(x))
    assert str(handle_of(tagged).outcome) == "compiled"


def test_a_result_of_another_layout_runs_as_eager() -> None:
    fit = jitmagic.jit(lambda a, b: L.lstsq(a, b, rcond=None)[1])
    assert fit(TALL, FIVE).shape == (1,)
    assert fit(np.ones((5, 3)), FIVE).shape == (0,)
    assert fit(TALL, FIVE).shape == (1,)
