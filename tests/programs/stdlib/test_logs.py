"""Logging and warnings stay in the graph's frame, and say what eager says, as often as eager."""

from __future__ import annotations

import functools
import logging
import warnings

import pytest
import torch

import jitmagic

from ..counts import counts_of

LOGGER = logging.getLogger("jitmagic.tests.logs")


@functools.lru_cache(None)
def warning_once(self, *args, **kwargs):
    self.warning(*args, **kwargs)


def enabled(x):
    y = x + 1
    LOGGER.warning("seen %s of %d", "one", x.shape[0])
    return y * 2


def disabled(x):
    LOGGER.debug("never %s", x.shape)
    return x + 1


def by_level(x):
    LOGGER.log(logging.ERROR, "error")
    LOGGER.error("error too", extra={"more": 1})
    return x + 1


def once(x):
    LOGGER.warning_once("only once")
    return x + 1


def in_order(x):
    for n in range(3):
        LOGGER.warning("number %d", n)
        x = x + n
    return x


def asked_at_first(x):
    """Loggers that have no remembered answer yet."""
    for name in "abc":
        logging.getLogger(f"jitmagic.tests.logs.{name}").warning("from %s", name)
        logging.getLogger(f"jitmagic.tests.logs.{name}").debug("never")
    return x + 1


@pytest.mark.parametrize("program", [asked_at_first, enabled, disabled, by_level, once, in_order])
def test_logs(program, logged, monkeypatch):
    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    x = torch.ones(3)

    def said(fn):
        warning_once.cache_clear()
        logged.records.clear()
        results = [fn(x).tolist() for _ in range(3)]
        told = [(r.levelname, r.getMessage(), r.funcName) for r in logged.records]
        return results, told if program is not once else [one[:2] for one in told]

    want = said(program)
    tagged = jitmagic.jit(program, backend="eager")
    assert said(tagged) == want
    assert counts_of(tagged).breaks == 0
    LOGGER.setLevel(logging.CRITICAL)
    try:
        assert said(tagged) == said(program)
    finally:
        LOGGER.setLevel(logging.NOTSET)


def warns(x):
    warnings.warn("careful")  # noqa: B028
    return x * 2


def deprecated(x):
    warnings.warn("old", DeprecationWarning, stacklevel=2)
    return x


def calls_deprecated(x):
    y = x + 1
    return deprecated(y) * 2


def with_category(x):
    warnings.warn("soon", category=FutureWarning, stacklevel=1)
    return x


@pytest.mark.parametrize("program", [warns, calls_deprecated, with_category])
@pytest.mark.parametrize("action", ["always", "once", "ignore", "default"])
def test_warnings(program, action):
    x = torch.ones(3)

    def said(fn):
        globals().pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            results = [fn(x).tolist() for _ in range(3)]
        return results, [(str(w.message), w.category, w.filename, w.lineno) for w in caught]

    want = said(program)
    tagged = jitmagic.jit(program, backend="eager")
    assert said(tagged) == want
    assert counts_of(tagged).breaks == 0


def writes_and_warns(x):
    x.add_(1)
    warnings.warn("careful")  # noqa: B028
    return x.mul_(2)


def test_a_warning_that_is_an_error_ends_the_program_at_its_line():
    tagged = jitmagic.jit(writes_and_warns, backend="eager")
    x = torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="careful"):
            tagged(x)
    assert x.tolist() == [2, 2, 2]
