"""ONNX's exporters around tagged code export the untagged program.

Each way to tag a program, before and after it was compiled, times both exporters, which need onnx
and onnxscript. What they stand on, torch.jit.trace and torch.export, is tested without those too
(test_observers.py).
"""

from __future__ import annotations

import importlib.util
import io
from collections import Counter
from typing import Any

import pytest
import torch

import jitmagic
from tests.covering import covered

from .test_observers import PROGRAMS, X, Y, _Holding

_MISSING = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the older exporter is deprecated
    pytest.mark.skipif(bool(_MISSING), reason=f"{' and '.join(_MISSING)} not installed"),
]


def _traced(module: torch.nn.Module) -> bytes:
    """By torch.jit.trace."""
    buffer = io.BytesIO()
    torch.onnx.export(module, (X,), buffer, dynamo=False)
    return buffer.getvalue()


def _exported(module: torch.nn.Module) -> bytes:
    """By torch.export."""
    made = torch.onnx.export(module, (X,), dynamo=True, verbose=False)
    return made.model_proto.SerializeToString()


def _pair(program: Any, warm: bool) -> tuple[torch.nn.Module, torch.nn.Module]:
    tagged, plain = program()
    jitmagic.reset()
    if warm:
        assert torch.allclose(tagged(X), plain(X))
        tagged(X)
    return tuple(p if isinstance(p, torch.nn.Module) else _Holding(p) for p in (tagged, plain))


def _operators(model: Any) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@covered(export=[_traced, _exported], program=PROGRAMS, warm=[False, True])
def test_exported_onnx_models_compute_the_same(export: Any, program: Any, warm: bool) -> None:
    from onnx import load_from_string  # noqa: PLC0415 - not among the requirements of the tests
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415

    tagged, plain = _pair(program, warm)
    model, wanted = (load_from_string(export(module)) for module in (tagged, plain))
    assert _operators(model) == _operators(wanted)  # no result is a constant
    run = ReferenceEvaluator(model)
    for given in (X, Y):
        (made,) = run.run(None, {run.input_names[0]: given.numpy()})
        assert torch.allclose(torch.tensor(made), plain(given), atol=1e-5)
