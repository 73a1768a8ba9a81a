"""Fixtures of the toolchain tests."""

from __future__ import annotations

import pytest
import torch

from jitmagic.devices import find_target
from jitmagic.options import make_options


@pytest.fixture
def target():
    found = find_target(torch.device("cpu"), make_options())
    if not found.cxx:
        pytest.skip("no C++ compiler on this machine")
    return found
