"""The generated text of canonical kernels is golden: changes are deliberate (--update-golden)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from tests.loops.recording import record
from tests.schedule.programs import PROGRAMS, made_inputs
from tests.schedule.test_fusion import TARGET

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
NAMES = [
    "chain_large", "relu_sum", "softmax_large", "layer_norm_saved", "layer_norm_backward",
    "everything_sum_large", "transposed_large", "embedding", "arg_reductions", "half_chain", "mlp",
    "mlp_backward", "mlp_inference",
]  # fmt: skip


def text_of(name: str) -> str:
    program = PROGRAMS[name]
    graph, _ = record(program.fn, *made_inputs(program))
    _, source = render(schedule(lower(graph, name), TARGET, Options()), TARGET)
    assert source is not None
    return source.text


@pytest.mark.parametrize("name", NAMES)
def test_text(name, update_golden):
    path = GOLDENS / f"{name}.cpp"
    text = text_of(name)
    if update_golden:
        path.write_text(text)
    assert path.read_text() == text


def test_text_depends_on_the_graph_alone():
    assert text_of("layer_norm_backward") == text_of("layer_norm_backward")
    torch.manual_seed(1)
    assert text_of("softmax_large") == text_of("softmax_large")
