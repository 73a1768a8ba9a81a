"""Random chains of operations (tests/loops/test_fuzz.py) as Triton, run by its interpreter."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from .test_triton import check

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "loops"))  # as its conftest does

from tests.loops.test_fuzz import chain  # noqa: E402

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.parametrize("seed", range(40))
def test_random_chain(seed):
    torch.manual_seed(seed)
    x = torch.randn(3, 4, 5)
    try:
        check(chain(seed, x), x)
    except RuntimeError as error:
        if "mask has unsupported dtype" not in str(error):  # the interpreter's, for scalar masks
            raise
