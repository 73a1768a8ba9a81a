"""Texts of programs for the block interpreter that are not what was rendered."""

from __future__ import annotations

import random

import pytest
import torch

import jitmagic
from jitmagic.codegen import render
from jitmagic.codegen.blocks.assembly import Assembly
from jitmagic.errors import FallbackWarning
from jitmagic.extension import runtime_module
from jitmagic.loops.lower import lower
from jitmagic.schedule import schedule
from tests.loops.recording import record
from tests.schedule.programs import PROGRAMS, made_inputs

from .test_blocks import OPTIONS, TARGET


def rendered(name: str) -> str:
    program = PROGRAMS[name]
    graph, _ = record(program.fn, *made_inputs(program))
    _, source = render(schedule(lower(graph, "test"), TARGET, OPTIONS), TARGET)
    assert source is not None
    return source.text


HOSTILE = ["everything_sum", "arg_reductions", "embedding", "softmax_op", "half_chain", "padded"]


@pytest.mark.parametrize("name", HOSTILE)
def test_text_that_is_cut_off_is_refused(name: str) -> None:
    text = rendered(name)
    assert len(kernel_names(text)) >= 1
    for end in range(1, len(text.rstrip())):
        try:
            kernel_names(text[:end])
        except ValueError:
            continue
        assert text[:end].rstrip().endswith("\nend"), "a cut between two kernels"


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_text_is_refused_or_read(name: str) -> None:
    """What runs afterwards is checked by nothing: addresses are those of the caller's tensors."""
    pick = random.Random(name)
    lines = rendered(name).splitlines()
    words = sorted({word for line in lines for word in line.split()})
    refused = 0
    for _ in range(1500):
        damaged = list(lines)
        at = pick.randrange(len(damaged))
        parts = damaged[at].split(" ")
        match pick.randrange(5):
            case 0:
                damaged.pop(at)
            case 1:
                damaged.insert(at, damaged[pick.randrange(len(damaged))])
            case 2:
                parts[pick.randrange(len(parts))] = pick.choice(words)
            case 3:
                number = pick.choice([-1, 0, 1, 99, 2**31, 2**63, -(2**63), 10**30])
                parts[pick.randrange(len(parts))] = str(number)
            case 4:
                parts.append(pick.choice(words))
        if len(damaged) == len(lines):
            damaged[at] = " ".join(parts)
        try:
            kernel_names("\n".join([*damaged, ""]))
        except ValueError as error:
            assert "malformed block kernels" in str(error)
            refused += 1
    assert refused > 500


def kernel_names(text: str) -> list[str]:
    return [*runtime_module().BlockKernels(text, TARGET.isa).entries()]


MALFORMED = {
    "an unknown operation": "view.f32 1 0 0\nsine.f32 2 1",
    "a register of another type, or not defined": "add.f32 2 2 2",
    "a view that is not placed": "view.f32 1 0 0\nadd.f32 1 1 1",
    "a store into an argument that is only read": "store.f32 0 0 0 2",
    "no such register": "view.f32 99 0 0",
    "no such argument": "view.f32 1 7 0",
    "an argument of another type": "view.i32 1 0 0",
    "a block does not fit its register": "iota 3 0 0\nto_f64.i64 2 3",
    "a scalar in place of a block": "view.f32 1 0 0\nconst.f32 4 0\nadd.f32 2 1 4",
    "blocks inside of blocks": "loop b 1 5 0\nloop b 1 6 0\nend\nend",
    "the text is cut off": "loop b 1 5 0",
    "an unknown reduction": "view.f32 1 0 0\nreduce.any.f32 2 1",
    "words after the end of a line": "view.f32 1 0 0 0",
    "not a number": "view.f32 1 0 x",
    "no such size": "size 0 0",
}


@pytest.mark.parametrize("why", MALFORMED)
def test_the_reader_says_what_is_wrong(why: str) -> None:
    head = "kernel k\nlanes 128\narguments f32 f32+\nsizes 0\nregisters s v 4 8 s s s\n"
    body = f"const.i64 0 1\n{MALFORMED[why]}\nend\n"
    with pytest.raises(ValueError, match=why):
        kernel_names(head + body)


def test_a_kernel_that_is_refused_is_one_of_the_next_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Assembly, "text", lambda *given: "kernel nothing\nend\n")
    fn = jitmagic.jit(lambda x: x.sin() + 1, options={"cpu_tier": "blocks"})
    x = torch.randn(5)
    with pytest.warns(FallbackWarning, match="the blocks code generator failed"):
        torch.testing.assert_close(fn(x), x.sin() + 1)
