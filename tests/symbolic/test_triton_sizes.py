"""Triton kernels for all sizes: one text is correct for every size in the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitmagic.codegen import render_template
from jitmagic.codegen.plan import KernelSource, PlanTemplate
from jitmagic.devices import Target
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.store import open_store
from jitmagic.runtime.triton_kernels import build_cubins
from jitmagic.schedule import schedule
from jitmagic.symbols.predicates import Predicates
from jitmagic.symbols.size import hint_of, value_of
from tests.codegen.interpreted import run_interpreted

from .sized import symbolic_graph
from .test_lower import PROGRAMS as SMALL
from .test_lower import _two

H200 = Target("cuda", "triton", "for tests", "sm_90", 1, 0, 50 << 20, "", 132)


def _indexed(x, y):
    return x + torch.arange(x.shape[1]) * (torch.arange(x.shape[0])[:, None] // 3)


def _gathered(x, y):
    return x.gather(1, y.argsort(1)) * 2


PROGRAMS = {
    **SMALL,
    "indexed": (_indexed, _two),
    "gathered": (_gathered, _two),
    "a size as a number alone": (lambda x, y: torch.arange(5) * x.shape[0] + 1, _two),
    "two norms": (lambda x, y: torch.softmax(x + y.mean(0), -1) - torch.softmax(y, 0), _two),
    "window": (
        lambda x, y: torch.nn.functional.pad(x, (2, 1))[:, 1:-1] + y.cumsum(0)[:1, :1],
        _two,
    ),
    "half": (lambda x, y: (x.bfloat16() * y.bfloat16()).sum(0).float(), _two),
}


def _rendered(
    fn, make, hints, excludes_sizes=True
) -> tuple[PlanTemplate, KernelSource, Predicates]:
    gm, found = symbolic_graph(fn, make, hints)
    found.context.excludes_sizes = excludes_sizes
    options = Options(verify=True)
    fused = schedule(lower(gm, "program"), H200, options)
    plans, source = render_template(fused, H200, found.symbols)
    assert source is not None
    return plans, source, found


def _at(source: KernelSource, found: Predicates, values) -> KernelSource:
    """With the grids of these sizes."""
    known = dict(zip(found.symbols, values, strict=True))
    grids = {
        name: replace(one, grid=tuple(value_of(count, known) for count in one.grid))
        for name, one in source.grids.items()
    }
    return replace(source, grids=grids)


def _told(found: Predicates) -> bool:
    """Return whether a relation restricts the sizes."""
    return any(op in ("<", "<=", "==") for op, *_ in found.relations)


# Reductions that are cut into pieces where they are long; the interpreter is too slow for the rest.
LONG = ("sum", "columns", "all", "columns softmax", "folded", "half")


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_text_is_right_for_every_size(name):
    in_tiles = name != "layer norm"  # which has a program for each row of 6
    _check(name, (8, 12), [(2, 3), (17, 7), (130, 129) if in_tiles else (13, 12)])


@pytest.mark.parametrize("name", LONG)
def test_one_text_is_right_for_every_length(name):
    _check(name, (3000, 32), [(48, 32), (1500, 48), (4100, 16)])


@pytest.mark.parametrize("name", ["softmax", "columns", "merged", "transposed", "indexed"])
def test_without_speed_assumptions_one_text_serves_all_sizes(name):
    found = _check(name, (64, 96), [(2, 3), (17, 7), (1100, 33), (3, 300)], excludes_sizes=False)
    assert not found.relations, str(found)


def _part(m, n, width):
    """Rows of a wider matrix, and columns of one: their strides are a symbol of their own."""
    return torch.randn(m, width)[:, :n], torch.randn(n, width)[:, :m].t()


STRIDED = {
    "pointwise": (lambda x, y: x * y + 1, _part),
    "softmax": (lambda x, y: torch.softmax(x + y, -1), _part),
    "columns": (lambda x, y: (x * y).sum(0), _part),
    "moved": (lambda x, y: x.t().contiguous() * y.t(), _part),
    "indexed": (lambda x, y: x.gather(1, y.argsort(1)) * 2, _part),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_that_vary(name, tmp_path):
    """In the interpreter, and as a kernel of a GPU."""
    _check(name, (8, 12, 40), [(2, 3, 5), (17, 7, 19), (130, 129, 200)], programs=STRIDED)
    plans, source, _ = _rendered(*STRIDED[name], (8, 12, 40))
    assert "s2" in source.text
    flags = aligned_arguments(plans.sized, inputs=True)
    cubins, _ = build_cubins(source, flags, H200, open_store(tmp_path))
    assert set(cubins) == set(source.symbols)


def _check(name, hints, sizes, excludes_sizes=True, programs=PROGRAMS) -> Predicates:
    fn, make = programs[name]
    plans, source, found = _rendered(fn, make, hints, excludes_sizes)
    held = 0
    for values in sizes:
        if not found.holds_for(values):
            assert _told(found), str(found)
            continue
        held += 1
        inputs = make(*values)
        (made,), _ = run_interpreted(_at(source, found, values), plans.plan(values), inputs)
        torch.testing.assert_close(made, fn(*inputs), rtol=1e-4, atol=1e-4)
    assert held >= 1, str(found)
    return found


@pytest.mark.parametrize("name", ["softmax", "columns", "merged", "moved", "indexed", "half"])
@pytest.mark.parametrize("hints", [(8, 12), (64, 96)], ids=["odd", "even"])
def test_it_compiles_for_a_gpu(name, hints, tmp_path):
    plans, source, _ = _rendered(*PROGRAMS[name], hints)
    flags = aligned_arguments(plans.sized, inputs=True)
    cubins, _ = build_cubins(source, flags, H200, open_store(tmp_path))
    assert set(cubins) == set(source.symbols)


def test_divisible_sizes_speed_up_kernels_and_are_reported():
    """A row in one block, loads of 16 bytes; no range of a size gets narrower for it."""
    _, source, found = _rendered(*PROGRAMS["softmax"], (64, 96))
    assert source.text.count("for ") == 0, "the row is read once"
    assert found.holds_for((9999, 112))
    assert not found.holds_for((64, 97))
    assert not found.holds_for((64, 160))
    assert found.holds_for((63, 128))
    _, source, found = _rendered(*PROGRAMS["softmax"], (9999, 9))
    assert found.holds_for((2, 128)), "a tail is masked"
    assert all(hint_of(grid.grid[0]) > 0 for grid in source.grids.values())
