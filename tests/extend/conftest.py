"""Every test of this folder starts and ends without extensions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jitmagic.extend.registry import REGISTRIES


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    yield
    for registry in REGISTRIES:
        for name in registry.rows:
            registry.remove(name)
