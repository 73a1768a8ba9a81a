"""One variant serves numpy arrays of varying sizes and gives numpy's results.

Where the probe of a call finds it to be another one at other sizes, or a dtype is too narrow for an
int of the call, the sizes are constants: more variants, and the same results.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from tests.covering import covered

np = pytest.importorskip("numpy")

SIZES = (5, 9, 4, 200, 3, 6)  # of rows; columns are others
Program = Callable[[Tensor], Any]


def normalised(x: Tensor) -> Any:
    a = x.numpy()
    b = (a - a.mean(axis=0)) / (a.std(axis=0) + 1)
    return torch.from_numpy(np.tanh(b)), b.T, a.max()


def positions(x: Tensor) -> Any:
    a = x.numpy()
    b = a + np.arange(a.shape[1], dtype=a.dtype)
    return np.concatenate([b, np.ones_like(b)], axis=1).sum(axis=1, keepdims=True)


def metadata(x: Tensor) -> Any:
    a = x.numpy()[:, ::2]
    return a.shape, a.size, a.nbytes, a.strides, a.ndim, a.itemsize, a.dtype, len(a)


def windows(x: Tensor) -> Any:
    a = x.numpy()
    half = len(a) // 2
    return a[:half], a[half:, 1:-1], a[-1], a.reshape(-1)[:half], a[:, None] * 2


def made(x: Tensor) -> Any:
    n, m = x.shape
    grid = np.zeros((n, m), dtype=np.float32)
    return grid + x.numpy(), np.full((m,), 2.5), np.linspace(0.0, 1.0, 7), np.eye(3)


def written(x: Tensor) -> Any:
    y = x.clone()
    a = y.numpy()
    a[1:] += a[:-1]
    a *= 2
    return y, a


def products(x: Tensor) -> Any:
    a = x.numpy()
    return a @ a.T, np.einsum("ij,ij->i", a, a), np.dot(a.T, a)


def sorted_rows(x: Tensor) -> Any:
    a = x.numpy()
    return np.sort(a, axis=0), np.cumsum(a, axis=1), np.argmax(a, axis=1), np.stack([a, a])


def as_data(x: Tensor) -> Any:
    """Use a size as a number."""
    a = x.numpy()
    return a * len(a), a / a.shape[1], np.where(a > 0, a, a.shape[0])


def repeated(x: Tensor) -> Any:
    a = x.numpy()
    return np.repeat(a, 2, axis=0), np.tile(a, (1, 3)), np.pad(a, 1), np.flip(a, 0)


def narrow(x: Tensor) -> Any:
    """Overflow at 256 rows, where numpy raises."""
    a = x.numpy().astype(np.uint8)
    return a + (len(a) - 1)


def halves(x: Tensor) -> Any:
    return np.cumsum(x.abs().numpy().astype(np.float16), axis=0)


def chosen(x: Tensor) -> Any:
    """Data decide a size."""
    return np.tanh(x[x > 0].numpy()).shape[0] >= 0, np.sort(x.abs().numpy(), axis=0)


def may_be_empty(x: Tensor) -> Any:
    """Take the mean of an empty array at three rows, where numpy warns."""
    return np.ones((len(x.numpy()) - 3, 2)).mean(axis=0)


def shapes(x: Tensor) -> Any:
    return np.shape(x.numpy()), np.size(x.numpy()), np.ndim(x.numpy())


ONCE: list[Program] = [
    normalised, positions, metadata, windows, made, written, products, sorted_rows, as_data,
    repeated, shapes,
]  # fmt: skip
OTHERS: list[Program] = [narrow, halves, chosen]


def alike(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            alike(one, other)
    elif isinstance(expected, Tensor | np.ndarray | np.generic):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        if isinstance(expected, np.ndarray) and expected.size:
            assert actual.strides == expected.strides
        rough = 2e-3 if expected.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rough, 1e-5)
    else:
        assert actual == expected


def variants(program: Program, backend: str, sizes: tuple[int, ...]) -> int:
    compiled = jitmagic.jit(program, backend=backend, dynamic=True, options={"keep": "compiled"})
    torch.manual_seed(0)
    for n in sizes:
        x = torch.randn(n, n // 2 + 11)
        alike(compiled(x.clone()), program(x.clone()))
    assert handle_of(compiled).given_up is None
    records = handle_of(compiled).journal.records
    return max(Counter(r.frame for r in records if r.result("trace") is not None).values())


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", ONCE, ids=lambda one: one.__name__)
def test_one_variant_serves_all_sizes(program: Program, backend: str) -> None:
    assert variants(program, backend, SIZES) == 1


@pytest.mark.parametrize("program", [*ONCE, *OTHERS], ids=lambda one: one.__name__)
def test_special_sizes_equal_numpy(program: Program) -> None:
    variants(program, "eager", (7, 1, 3, 1, 2))


@pytest.mark.parametrize("program", OTHERS, ids=lambda one: one.__name__)
def test_other_size_dependent_results_equal_numpys(program: Program) -> None:
    variants(program, "eager", SIZES)


def test_numpy_runs_sizes_at_which_it_warns() -> None:
    compiled = jitmagic.jit(may_be_empty, backend="eager", dynamic=True)
    for n in (9, 5, 3):
        x = torch.ones(n, 2)
        seen = []
        for run in (may_be_empty, compiled):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                made = run(x)
            seen.append((str(made), sorted({str(w.message) for w in caught})))
        assert seen[0] == seen[1]
    assert seen[0][1]


def test_sizes_that_were_seen_to_vary_vary_in_arrays() -> None:
    compiled = jitmagic.jit(positions, backend="eager", options={"keep": "compiled"})
    for n in SIZES:
        x = torch.randn(n, 7)
        alike(compiled(x), positions(x))
    assert len(handle_of(compiled).journal.records) == 2


def given(a: Any) -> Any:
    b = np.sin(a) * a.shape[1] + np.arange(a.shape[1])
    return b.mean(axis=-1), a @ a.T, np.concatenate([a, b]), a[1:] - a[:-1], len(a)


def given_and_written(a: Any) -> Any:
    a[1:] *= 2.0
    return torch.from_numpy(a).cumsum(0), a


def in_a_list(a: Any) -> Any:
    first, second = [a, np.asfortranarray(a)]
    return first + second, np.where(first > 0, second, 0.0)


@covered(
    program=[given, given_and_written, in_a_list],
    dynamic=[None, True],
    backend=["eager", "native"],
)
def test_arrays_among_the_arguments(program: Any, dynamic: bool | None, backend: str) -> None:
    """Sizes and row strides vary; a size of one or zero is a variant."""
    compiled = jitmagic.jit(program, backend=backend, dynamic=dynamic, options={"keep": "compiled"})
    rng, counts = np.random.default_rng(0), []
    for rows, columns in ((5, 4), (8, 3), (9, 7), (16, 6), (200, 11), (5, 4), (1, 4), (0, 4)):
        ours = rng.standard_normal((rows, columns))
        theirs = ours.copy()
        alike(compiled(ours), program(theirs))
        np.testing.assert_array_equal(ours, theirs)
        records = [r for r in handle_of(compiled).journal.records if r.result("trace") is not None]
        counts.append(max(Counter(r.frame for r in records).values()))
    assert counts[-3] == (1 if dynamic else 2)
    for step in (2, 3):
        ours = rng.standard_normal((14, 20))[:, ::step]
        theirs = ours.copy()
        alike(compiled(ours)[0], program(theirs)[0])
    assert handle_of(compiled).given_up is None
