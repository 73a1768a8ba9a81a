"""Exported programs give eager's results: as made, saved and loaded, decomposed, other sizes."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

import jitmagic

from .programs import CASES, Case


def exported(case: Case, fn: Any) -> ExportedProgram:
    if isinstance(fn, torch.nn.Module):
        fn.train(case.trains)
    args, kwargs = case.args(case.example), case.kwargs(case.example)
    return jitmagic.export(fn, dynamic=case.dynamic)(*args, **kwargs)


def reloaded(program: ExportedProgram) -> ExportedProgram:
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its tree specs
        return torch.export.load(stored)


def state_of(fn: Any) -> list[torch.Tensor]:
    return [*fn.parameters(), *fn.buffers()] if isinstance(fn, torch.nn.Module) else []


def assert_same(found: Any, wanted: Any) -> None:
    found, wanted = tree_leaves(found), tree_leaves(wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        else:
            assert one == other and type(one) is type(other)


def check(case: Case, fn: Any, run: Any) -> None:
    """Compare a program with eager: results, written arguments, buffers, and sizes it refuses."""
    eager = copy.deepcopy(fn)
    for n in (case.example, *case.others):
        args, kwargs = case.args(n), case.kwargs(n)
        args2, kwargs2 = copy.deepcopy((args, kwargs))
        torch.manual_seed(0)
        wanted = eager(*args, **kwargs)
        torch.manual_seed(0)
        assert_same(run(*args2, **kwargs2), wanted)
        assert_same((args2, kwargs2), (args, kwargs))
    if isinstance(fn, torch.nn.Module):
        buffers = dict(run.named_buffers())
        for name, buffer in eager.named_buffers():
            if name in buffers:
                torch.testing.assert_close(buffers[name], buffer)
    for n in case.refused:
        with pytest.raises((AssertionError, RuntimeError), match="size|<=|>="):
            run(*case.args(n), **case.kwargs(n))


@pytest.mark.parametrize("name", CASES)
def test_program_gives_eagers_results(name: str) -> None:
    torch.manual_seed(1)
    case = CASES[name]
    fn = case.make()
    before = [tensor.detach().clone() for tensor in state_of(fn)]
    program = exported(case, fn)
    assert_same(state_of(fn), before)
    program.validate()
    assert program.dialect == "ATEN"
    decomposed = [program.run_decompositions()] if case.decomposes else []
    for each in (program, reloaded(program), *decomposed):
        check(case, fn, each.module())
        with torch.no_grad():  # a program shares the module's state, as torch.export's does
            for tensor, old in zip(state_of(fn), before, strict=True):
                tensor.copy_(old)
