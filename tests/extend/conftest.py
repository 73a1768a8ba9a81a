"""Every test of this folder starts and ends without passes and backends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jitmagic.extend.backends import BACKENDS
from jitmagic.extend.calls import CALLS
from jitmagic.extend.passes import PASSES


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    yield
    for registry in (BACKENDS, PASSES, CALLS):
        for name in registry.rows:
            registry.remove(name)
