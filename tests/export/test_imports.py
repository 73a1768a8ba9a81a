"""An ExportedProgram or a GraphModule compiles natively, for the sizes that it declares."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.export import Dim

import jitmagic
from jitmagic.api import handle_of

from .programs import CASES
from .test_programs import assert_same, check, exported


@pytest.mark.parametrize("name", CASES)
def test_jit_of_program_gives_eagers_results(name: str) -> None:
    torch.manual_seed(1)
    case = CASES[name]
    fn = case.make()
    program = exported(case, fn)
    run = jitmagic.jit(program, fullgraph=True)
    # A saved running mean is written afterwards, so eager has no backward of this program either.
    with torch.no_grad() if case.trains else nullcontext():
        # A tagged module decides nothing by size 1: its check of the range is a graph break then.
        check(replace(case, refused=(), others=tuple(n for n in case.others if n > 1)), fn, run)
    if case.dynamic is not None and name != "takes_containers":  # their sizes are found by calls
        assert len(handle_of(run).dispatcher.entries) == 1


@pytest.mark.parametrize("name", ["pointwise", "dynamic_int", "languagemodel"])
def test_jit_of_program_refuses_sizes_out_of_range(name: str) -> None:
    case = CASES[name]
    fn = case.make()
    check(case, fn, jitmagic.jit(exported(case, fn)))


def test_program_of_torch_export_compiles() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU())
    rows = Dim("rows", min=2, max=32)
    program = torch.export.export(module, (torch.randn(3, 4),), dynamic_shapes=({0: rows},))
    run = jitmagic.jit(program)
    with torch.no_grad():
        for n in (3, 7, 32):
            x = torch.randn(n, 4)
            before = [buffer.clone() for buffer in module.buffers()]
            found = run(x)
            after = [buffer.clone() for buffer in module.buffers()]  # the program shares them
            for buffer, old in zip(module.buffers(), before, strict=True):
                buffer.copy_(old)
            assert_same(found, module(x))
            assert_same(after, list(module.buffers()))


def test_graph_module_compiles_in_place() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
    traced = torch.fx.symbolic_trace(module)
    run = jitmagic.jit(traced, fullgraph=True)
    assert run is traced
    for n in (2, 5):
        x = torch.randn(n, 4)
        assert_same(run(x), module(x))
    assert handle_of(run) is not None
    assert len(handle_of(run).dispatcher.entries) >= 1


def test_module_of_program_compiles_with_its_checks() -> None:
    case = CASES["pointwise"]
    run = jitmagic.jit(exported(case, case.make()).module())
    check(case, case.make(), run)
