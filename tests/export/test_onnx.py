"""torch.onnx takes exported programs, where onnxscript is installed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from .programs import CASES
from .test_programs import exported

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("name", ["pointwise", "images", "attention", "tied", "languagemodel"])
def test_onnx_gives_eagers_results(name: str) -> None:
    case = CASES[name]
    fn: Any = case.make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx = torch.onnx.export(exported(case, fn), dynamo=True, verbose=False)
    assert onnx is not None
    for n in (case.example, *case.others):
        args, kwargs = case.args(n), case.kwargs(n)
        wanted = tree_leaves(fn(*args, **kwargs))
        for found, one in zip(onnx(*args, **kwargs), wanted, strict=True):
            torch.testing.assert_close(torch.as_tensor(found), one, rtol=1e-3, atol=1e-4)
