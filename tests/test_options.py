"""Options: torch.compile's names mean what they mean there, and what is unknown is named once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.errors import OptionError
from jitmagic.options import Options, make_options

TUNED = "max-autotune-no-cudagraphs"
UNDERSTOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"triton.cudagraphs": True}, {"cuda_graphs": True}),
    ({"triton.cudagraphs": False}, {"cuda_graphs": False}),
    ({"max_autotune": True}, {"mode": TUNED, "cuda_graphs": False}),
    ({"max_autotune": False}, {"mode": "default"}),
    ({"max_autotune_gemm": True}, {"mode": TUNED}),
    ({"max_autotune_pointwise": True}, {"mode": TUNED}),
    ({"max_autotune": True, "triton.cudagraphs": True}, {"mode": TUNED, "cuda_graphs": True}),
    ({"max_autotune": True, "mode": "max-autotune"}, {"mode": "max-autotune"}),
    ({"epilogue_fusion": True}, {"fuse": True}),
    ({"epilogue_fusion": False}, {"fuse": False}),
    ({"emulate_precision_casts": True}, {"precision": "eager"}),
    ({"emulate_precision_casts": False}, {"precision": "fast"}),
    ({"fallback_random": True}, {"precision": "eager"}),
    ({"cache_size_limit": 3}, {"recompile_limit": 3}),
]


@pytest.mark.parametrize(("given", "wanted"), UNDERSTOOD, ids=str)
def test_names_of_torch_compile(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    for made in (make_options(given), make_options(**given)):
        assert {name: getattr(made, name) for name in wanted} == wanted


def test_inductor_is_native() -> None:
    assert make_options(backend="inductor").backend == "native"
    assert make_options(Options(fuse=False), backend="inductor") == Options(fuse=False)
    x = torch.randn(4)
    run = jitmagic.jit(torch.nn.ReLU(), backend="inductor", options={"epilogue_fusion": True})
    torch.testing.assert_close(run(x), x.relu())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cudagraphs": True}, "unknown option 'cudagraphs' (did you mean 'cuda_graphs'?)"),
        ({"Recompile_Limit": 3}, "'Recompile_Limit' (did you mean 'recompile_limit'?)"),
        ({"shape_padding": True}, "unknown option 'shape_padding'; known: backend, mode"),
        ({"fused": 1, "shape_padding": 1}, "'fused' (did you mean 'fuse'?), 'shape_padding';"),
        ({"max_autotune": "yes"}, "unknown value for max_autotune 'yes'"),
        ({"trace.enabled": True, "cpp_wrapper": True}, "'trace.enabled', 'cpp_wrapper';"),
        ({"mode": "max-autotun"}, "unknown mode 'max-autotun' (did you mean 'max-autotune'?)"),
        ({"backend": "inducto"}, "unknown backend 'inducto'"),
        ({"on_error": "explode"}, "unknown on_error 'explode'; known: eager, raise"),
        ({"notices": True}, "unknown notices True; known: auto, always, never"),
    ],
    ids=str,
)
def test_what_is_unknown_is_named_with_the_nearest(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_options(given)
    assert message in str(caught.value)
