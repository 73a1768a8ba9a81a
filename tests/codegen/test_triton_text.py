"""The Triton text of canonical kernels is golden: changes are deliberate (--update-golden)."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.codegen.triton.device_functions import HELPERS
from jitmagic.codegen.triton.ops import cast_text, is_open, literal, typed
from jitmagic.devices import Target
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from tests.loops.recording import record
from tests.schedule.programs import PROGRAMS, made_inputs

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
H200 = Target("cuda", "triton", "for tests", "sm_90", 1, 0, 50 << 20, "", 132)
NAMES = [
    "chain_large", "relu_sum", "softmax_large", "layer_norm_backward", "everything_sum_large",
    "transposed_large", "embedding", "arg_reductions", "half_chain", "column_sum_large",
]  # fmt: skip


def text_of(name: str) -> str:
    program = PROGRAMS[name]
    graph, _ = record(program.fn, *made_inputs(program))
    _, source = render(schedule(lower(graph, name), H200, Options()), H200)
    assert source is not None
    grids = "".join(f"# {kernel}: {grid}\n" for kernel, grid in source.grids.items())
    return source.text + grids


@pytest.mark.parametrize("name", NAMES)
def test_text(name, update_golden):
    path = GOLDENS / f"{name}.triton"
    text = text_of(name)
    if update_golden:
        path.write_text(text)
    assert path.read_text() == text


def test_helpers_are_valid_python():
    for name, text in HELPERS.items():
        compile(text, name, "exec")


def test_brackets_only_where_needed():
    single, half = torch.float32, torch.bfloat16
    assert is_open("add", single, single) and is_open("signbit", torch.bool, single)
    assert is_open("bitwise_not", torch.int32, torch.int32)
    assert is_open("lt", torch.bool, half)
    assert not is_open("add", half, half), "it is converted back"
    assert not is_open("exp", single, single) and not is_open("where", half, half)


def test_numbers_keep_their_dtype():
    assert literal(0.1, torch.float32) == "0.1"
    assert literal(-2.5, torch.float32) == "(-2.5)"
    assert literal(1e-45, torch.float32).startswith("tl.full")
    assert literal(0.1, torch.float64) == "tl.full([], 0.1, tl.float64)"
    assert literal(3, torch.int64) == "3"
    assert literal(-3, torch.int64) == "tl.full([], -3, tl.int64)"
    assert literal(200, torch.uint8) == "tl.full([], 200, tl.uint8)"
    assert 'float("-inf")' in literal(float("-inf"), torch.float32)


@pytest.mark.parametrize(
    "value", [1e-8, -3e-7, 0.1, 1.5, -0.0, 0.0, 3e38, 1e-40, math.inf, -math.inf]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_constants_of_every_float_are_exact(value, dtype):
    """Triton writes a bfloat16 with six decimals."""
    text = typed(value, dtype)
    plain = re.fullmatch(r"tl\.full\(\[\], (.*), tl\.(\w+)\)(\.to\(.*bitcast=True\))?", text)
    number = eval(plain[1])
    if plain[3]:
        got = torch.tensor(number, dtype=getattr(torch, plain[2])).view(dtype)
    elif dtype is torch.bfloat16 and math.isfinite(number):
        got = torch.tensor(float(f"{number:.6f}"), dtype=dtype)
    else:
        got = torch.tensor(number, dtype=dtype)
    assert got.item() == torch.tensor(value, dtype=dtype).item()
    assert math.copysign(1, got.item()) == math.copysign(1, value)


def test_narrow_integers_wrap_around():
    assert cast_text("x", torch.float32, torch.uint8) == "x.to(tl.int64).to(tl.uint8)"
    assert cast_text("x", torch.float64, torch.bfloat16) == "x.to(tl.float32).to(tl.bfloat16)"
    assert cast_text("x", torch.int64, torch.bool) == "x != 0"


def test_fill_values_of_masked_loads_keep_their_dtype():
    """A plain number would be a float32: padding with 0.001 gave 0.0010000000474974513."""
    texts = []
    for dtype in (torch.float64, torch.float32):
        graph, _ = record(
            lambda x: torch.nn.functional.pad(x, (1, 2), value=1e-3), torch.ones(2, 2, dtype=dtype)
        )
        _, source = render(schedule(lower(graph, "padded"), H200, Options()), H200)
        assert source is not None
        texts.append(source.text)
    assert "other=tl.full([], 0.001, tl.float64)" in texts[0]
    assert "other=0.001)" in texts[1]
