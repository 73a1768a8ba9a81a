"""numpy inside tagged code equals numpy: functions x dtypes x edge values, memory, breaks. Every
call returns numpy's class, dtype and values (to rounding), or raises its error. The calls that
programs use most are stated to be one graph.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import jitmagic
from tests.processes import run_python
from tests.programs.counts import counts_of

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "float16", "complex64")
EDGES: dict[str, list[Any]] = {
    "f": [0.0, -0.0, 1.5, -2.5, 3.0, np.nan, np.inf, -np.inf, 1e3, -7.25, 0.5, 2.0],
    "i": [0, 1, -1, 2, -3, 7, 100, -100, 5, 8, 12, -6],
    "u": [0, 1, 255, 2, 3, 7, 100, 200, 5, 8, 12, 6],
    "b": [True, False, False, True, True, True, False, False, True, False, True, False],
    "c": [0j, 1 + 2j, -1j, 2.5, -3 + 1j, 7, 1j, -1, 5, 8j, 12, -6],
}
UNARY = (
    "abs negative positive sqrt exp log tanh sin cos floor ceil rint trunc fix square reciprocal "
    "sign isnan isfinite logical_not invert conj cbrt exp2 log1p signbit deg2rad"
).split()
BINARY = (
    "add subtract multiply divide floor_divide remainder power maximum minimum fmax arctan2 hypot "
    "equal less logical_and bitwise_xor left_shift fmod copysign heaviside gcd logaddexp "
    "float_power"
).split()
REDUCTIONS = (
    "sum prod mean std var max min argmax argmin any all ptp cumsum median count_nonzero".split()
)
PAIRS = [*((name, name) for name in DTYPES), ("float32", "int64"), ("uint8", "int32")]
SHAPING: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda a: a.reshape(4, 3),
    "T": lambda a: a.T,
    "ravel": lambda a: a.ravel(),
    "flatten": lambda a: a.T.flatten(),
    "slice": lambda a: a[1:, ::2],
    "reversed": lambda a: a[::-1],
    "row": lambda a: a[1],
    "element": lambda a: a[1, 2],
    "new axis": lambda a: a[:, None, 1],
    "list index": lambda a: a[[0, 2]],
    "concatenate": lambda a: np.concatenate([a, a], axis=1),
    "stack": lambda a: np.stack([a, a + a]),
    "split": lambda a: np.split(a, 2, axis=1),
    "where": lambda a: np.where(a == a, a, a[0]),
    "astype": lambda a: (a == a).astype(np.float32),
    "as double": lambda a: a.astype("float64"),
    "as it is": lambda a: [a.astype(a.dtype), a.T.astype(a.dtype), a[:, ::2].astype(a.dtype)],
    "copy": lambda a: a.copy(),
    "ones": lambda a: np.ones(3) + np.zeros_like(a[:, :3]),
    "full": lambda a: np.full((2, 2), 7),
    "arange": lambda a: np.arange(5, dtype=a.dtype),
    "linspace": lambda a: np.linspace(0, 1, 5),
    "eye": lambda a: np.eye(3),
    "outer": lambda a: np.outer(a[0], a[1]),
    "matmul": lambda a: a @ a.T,
    "dot": lambda a: np.dot(a, a.T),
    "einsum": lambda a: np.einsum("ij,kj->ik", a, a),
    "broadcast": lambda a: np.broadcast_to(a, (2, 3, 4)),
    "sort": lambda a: np.sort(a, axis=1),
    "unique": lambda a: np.unique(a),
    "mask": lambda a: a[a == a],
    "clip": lambda a: a.clip(0, 3),
    "round": lambda a: np.round(a, 1),
    "diff": lambda a: np.diff(a),
    "norm": lambda a: np.linalg.norm(a),
    "fft": lambda a: np.fft.fft(a),
    "two parts": lambda a: (a.shape, a.ndim, a.size, a.dtype.name, a.dtype == np.float32, len(a)),
    "rows": lambda a: [row.sum() for row in a],
    "scalars": lambda a: [a * 2, 2 * a, a + 1.5, 1.5 - a],
    "a scalar on": lambda a: a[0, 0] * a + a.max(),
    "tile": lambda a: np.tile(a, 2),
    "repeat": lambda a: np.repeat(a, 2, axis=0),
    "pad": lambda a: np.pad(a, 1),
    "object": lambda a: np.array([None, "x"], dtype=object),
    "random": lambda a: np.random.RandomState(0).rand(3) * a.shape[0],
    "fields": lambda a: np.zeros(2, dtype=[("x", "f4")])["x"],
}


def array(dtype: str, shape: tuple[int, ...] = (3, 4)) -> Any:
    values = EDGES[np.dtype(dtype).kind]
    with np.errstate(all="ignore"):
        return np.resize(np.array(values).astype(dtype), shape)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call, or its exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        try:
            return function(*args)
        except Exception as error:
            return type(error), str(error)


def check(function: Callable[..., Any], *args: Any, backend: str = "eager") -> Any:
    """Compare the tagged function with the plain one, twice, on copies; return its counts."""
    tagged = jitmagic.jit(function, backend=backend)
    for _ in range(2):
        mine, theirs = copies(args), copies(args)
        expected = outcome(function, *theirs)
        same(outcome(tagged, *mine), expected)
        same(mine, theirs)
    return counts_of(tagged)


def copies(args: Any) -> Any:
    return tuple(a.clone() if isinstance(a, torch.Tensor) else np.array(a) for a in args)


def same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected), (actual, expected)
    if isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            same(*pair)
    elif isinstance(expected, np.ndarray | np.generic):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert actual.strides == expected.strides or not actual.size or 1 in actual.shape
        if expected.dtype.kind not in "fc":
            np.testing.assert_array_equal(actual, expected)
        else:
            rtol = {"e": 2e-3, "f": 1e-5, "F": 1e-5}.get(expected.dtype.char, 1e-12)
            np.testing.assert_allclose(actual, expected, rtol, rtol, equal_nan=True)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, equal_nan=True)
    else:
        assert actual == expected or expected != expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(name: str, dtype: str) -> None:
    function = getattr(np, name)
    check(lambda a: function(a), array(dtype))


@pytest.mark.parametrize("dtypes", PAIRS, ids="-".join)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arrays(name: str, dtypes: tuple[str, str]) -> None:
    function = getattr(np, name)
    check(lambda a, b: function(a, b), array(dtypes[0]), array(dtypes[1])[:, ::-1].copy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: str) -> None:
    function = getattr(np, name)
    for shape in ((3, 4), (1, 5), (0, 2)):
        check(lambda a: function(a), array(dtype, shape))
        check(lambda a: function(a, axis=1), array(dtype, shape))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64"])
@pytest.mark.parametrize("what", SHAPING)
def test_shapes_and_items(what: str, dtype: str) -> None:
    check(SHAPING[what], array(dtype))


def edit_in_place(a: Any) -> Any:
    a[0] += 1
    a[:, 1] *= 2
    a += a[0]
    np.add(a, 1, out=a)
    return a


def edit_a_copy(a: Any) -> Any:
    c = a.copy()
    c[1:] += a[:-1]
    c.T[0] = 4
    c[c.shape[0] - 1, 0] = 7
    return c, c.T


def edit_what_was_converted(a: Any) -> Any:
    c = a.astype(np.float64)
    c[0] = 1
    return c, a, a[0].astype(np.float64)[:2]


def edit_by_tensor(a: Any) -> Any:
    t = torch.from_numpy(a)
    t.add_(1)
    return t, a.T, a, torch.as_tensor(a, dtype=torch.float32), torch.tensor(a)


def edit_by_array(t: torch.Tensor) -> Any:
    a = t.numpy()
    a[1] = 5
    b = t * 2
    a -= 1
    return b + t, a


WHOLE = [edit_in_place, edit_a_copy, edit_what_was_converted, edit_by_tensor, edit_by_array]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_writes_are_visible_through_shared_memory(function: Any, backend: str) -> None:
    a = array("float64")
    given = torch.from_numpy(a) if function is edit_by_array else a
    counts = check(function, given, backend=backend)
    assert (counts.graphs, counts.breaks) == (1, 0)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_results_share_memory_as_in_eager(backend: str) -> None:
    @jitmagic.jit(backend=backend, fullgraph=True)
    def views(a: Any, t: torch.Tensor) -> Any:
        b = np.tanh(a)
        return a.T, b, b[1:], torch.from_numpy(b), t.numpy(), torch.from_numpy(a), a

    a, t = array("float32"), torch.ones(3)
    for _ in range(2):
        turned, b, part, made, of_t, of_a, same_a = views(a, t)
        assert np.shares_memory(turned, a)
        assert np.shares_memory(of_t, t.numpy())
        assert np.shares_memory(of_a.numpy(), a)
        assert same_a is a
        b[1, 0] = 42
        assert part[0, 0] == 42
        assert made[1, 0] == 42


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_program_that_leaves_torch_and_comes_back_is_one_graph(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor, table: Any) -> Any:
        a = x.numpy()
        b = np.tanh(a) * 2 + np.arange(a.shape[1], dtype=a.dtype) + table
        c = np.concatenate([b, np.ones_like(b)], axis=1).mean(axis=1, keepdims=True)
        return (y @ y.t()).relu() + torch.from_numpy(c), c, c.max(), float(int(a.shape[0] * 1.5))

    given = torch.randn(8, 8), torch.randn(8, 8), np.linspace(0, 1, 8, dtype=np.float32)
    counts = check(program, *given, backend=backend)
    assert (counts.graphs, counts.breaks) == (1, 0)


def test_numpy_submodule_is_imported_on_first_use() -> None:
    """numpy imports `np.fft` on first access, as does the lookup of torch's functions for it."""
    code = """
        import sys, warnings
        import numpy as np
        import torch
        import jitmagic
        warnings.simplefilter("error")
        assert "numpy.fft" not in sys.modules
        def program(x):
            return x + torch.from_numpy(np.sin(np.fft.fftfreq(4)))
        found = jitmagic.jit(program, backend="eager", fullgraph=True)(torch.ones(4))
        assert torch.equal(found, program(torch.ones(4)))
    """
    result = run_python(code)
    assert result.returncode == 0, result.stderr


WITH_TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "quotients of integers": lambda x: x * torch.from_numpy(np.arange(4) / 3 + 2 / np.arange(1, 5)),
    "quotients of bools": lambda x: x + torch.from_numpy((x.numpy() > 0) / np.arange(4)),
    "frequencies": lambda x: x + torch.from_numpy(np.fft.fftfreq(4, 0.5) * np.fft.rfftfreq(6)),
    "several grids": lambda x: x + torch.from_numpy(np.meshgrid(np.arange(4), np.ones(4))[0]),
    "rows by numbers": lambda x: x[np.array([2, 0, -1])],
    "columns by int32": lambda x: x[:, np.array([1, 3], dtype=np.int32)],
    "a mask": lambda x: x[:, np.array([True, False, True, True])],
    "coordinates": lambda x: x[np.array([0, 1]), np.arange(2)],
    "coordinates at once": lambda x: x[np.array([[0, 1], [1, 2]])],
    "of two dimensions": lambda x: x[:, np.array([[0, 1], [1, 2]])],
    "by floats": lambda x: x[np.array([0.0, 1.0])],
    "written rows": lambda x: x.clone().index_fill_(0, torch.tensor(np.array([1])), 3.0),
}
IN_PARTS = ("a mask", "coordinates at once", "of two dimensions", "by floats")


@pytest.mark.parametrize("what", WITH_TENSORS)
def test_arrays_among_tensors(what: str) -> None:
    with np.errstate(all="ignore"):
        counts = check(WITH_TENSORS[what], torch.arange(16.0).view(4, 4) - 5)
    assert what in IN_PARTS or (counts.graphs, counts.breaks) == (1, 0)


def test_an_assignment_takes_an_array_as_index() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        made = x * 2
        made[np.array([0, 2])] = 7.0
        made[:, np.array([True, False, False, False])] = 0.5
        return made

    counts = check(program, torch.ones(4, 4), backend="native")
    assert (counts.graphs, counts.breaks) == (1, 0)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_rows_that_an_array_of_numbers_picks(backend: str) -> None:
    """An index out of bounds raises numpy's error before anything is written."""

    def program(data: Any, labels: Any, order: Any) -> Any:
        picked = torch.from_numpy(data[order]) * 2, torch.from_numpy(labels[order[:2]])
        data[order] = 0
        return *picked, data[order % 3, 1]

    tagged = jitmagic.jit(program, backend=backend, fullgraph=True)
    data, labels = array("float32", (6, 3)), np.arange(6)
    for order in ([0, 2, 5, 1], [3, 3, -1, 0], [5, 4, 3, 2]):
        ours, numpys = data.copy(), data.copy()
        same(tagged(ours, labels, np.array(order)), program(numpys, labels, np.array(order)))
        same(ours, numpys)
    for order in ([0, 2, 6, 1], [-7, 0, 0, 0]):
        with pytest.raises(IndexError) as wanted:
            program(data.copy(), labels, np.array(order))
        ours = data.copy()
        with pytest.raises(IndexError) as got:
            tagged(ours, labels, np.array(order))
        assert str(got.value) == str(wanted.value)
        same(ours, data)
    assert counts_of(tagged).graphs == 1


def test_arrays_are_guarded() -> None:
    """Another shape, dtype, order, class, or read-only memory gives numpy's result each time."""
    tagged = jitmagic.jit(lambda a: a * 2 + a.shape[0], backend="eager")
    base = array("float64", (4, 4))
    read_only = base.copy()
    read_only.flags.writeable = False
    variants = [base, base[:2], base.T, base.astype(np.float32), read_only, base[::-1]]
    others = [np.matrix([[1.0, 2.0]]), np.ma.masked_array([1.0, 2.0]), base.astype(">f8"), base]
    for a in [*variants, *others]:
        same(tagged(a), a * 2 + a.shape[0])


def test_calls_that_raise_in_eager_raise() -> None:
    tagged = jitmagic.jit(lambda t: t.numpy() + 1, backend="eager")
    with pytest.raises(RuntimeError, match="requires grad"):
        tagged(torch.ones(2, requires_grad=True))
    with pytest.raises(TypeError):
        tagged(torch.ones(2, dtype=torch.bfloat16))
    picked = jitmagic.jit(lambda a, i: a[i], backend="eager")
    a = array("float32")
    for index in (1, 7, -1):
        same(outcome(picked, a, index), outcome(operator.getitem, a, index))


def test_errstate_is_guarded_at_each_call() -> None:
    tagged = jitmagic.jit(lambda a: np.log(a), backend="eager")
    zero = np.zeros(2)
    with np.errstate(all="ignore"):
        same(tagged(zero), np.log(zero))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        tagged(zero)


def test_eager_does_writes_that_autograd_does_not_see() -> None:
    def function(w: torch.Tensor, x: torch.Tensor) -> Any:
        y = w * x
        x.numpy()[0] = 3
        return y.sum()

    for run in (function, jitmagic.jit(function, backend="eager")):
        w, x = torch.ones(2, requires_grad=True), torch.ones(2)
        run(w, x).backward()
        assert w.grad is not None
        assert w.grad.tolist() == [3, 1]
