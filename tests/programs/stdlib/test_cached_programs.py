"""What programs do with functools.lru_cache: results, gradients, text and counters are eager's."""

from __future__ import annotations

import enum
import functools
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import jitmagic

CONFIG = {"t": 1.0}


class Settings:
    def __init__(self) -> None:
        self.t, self.items = 1.0, [1.0]


class Key(enum.Enum):
    A = 1


settings = functools.cache(Settings)


@functools.lru_cache(maxsize=2, typed=True)
def typed(n, *, k=1):
    return [n * k]


@functools.lru_cache(maxsize=2)
def few(n):
    return [float(n)]


@functools.cache
def of_a_key(key):
    return {"value": key.value}


@functools.cache
def positive(n):
    if n < 0:
        raise ValueError(n)
    return [n]


@functools.cache
def nested(n):
    return [settings(), n]


@functools.cache
def printed(n):
    print("made", n)
    return n * 2.0


@functools.cache
def by_grad_mode():
    return 2.0 if torch.is_grad_enabled() else 3.0


@functools.cache
def configured():
    return CONFIG["t"]


@functools.cache
def ones(n):
    return torch.ones(n)


@functools.cache
def mixed(n):
    return torch.ones(n), n


class Model(torch.nn.Module):
    @functools.lru_cache  # noqa: B019
    def angles(self, n):
        return torch.arange(float(n))

    @functools.lru_cache  # noqa: B019
    def config(self):
        return {"t": 2.0}

    def forward(self, x):
        return x * self.config()["t"] + self.angles(2)


MODELS = Model(), Model()
CACHES: list[Any] = [
    settings, typed, few, of_a_key, positive, nested, printed, by_grad_mode, configured, ones,
    mixed, Model.angles, Model.config,
]  # fmt: skip


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * settings().t

    @staticmethod
    def backward(ctx, g):
        return g * settings().t


def writes(x):
    settings().t += 1
    settings().items.append(2.0)
    return x * settings().t + sum(settings().items)


def several_keys(x):
    return x * typed(2)[0] + typed(2.0)[0] + typed(2, k=3)[0] + of_a_key(Key.A)["value"]


def more_than_it_keeps(x):
    return x + few(1)[0] + few(2)[0] + few(3)[0] + few(1)[0]


def catches(x):
    try:
        positive(-1)
    except ValueError:
        x = x + 1
    return x * positive(3)[0]


def within_another(x):
    return x * nested(2)[0].t + nested(2)[1]


def prints(x):
    return x * printed(3)


def in_another_mode(x):
    with torch.no_grad():
        factor = by_grad_mode()
    return x * factor


def written_before(x):
    CONFIG["t"] += 1
    return x * configured()


def written_after(x):
    y = x * configured()
    CONFIG["t"] += 1
    return y


def methods_of_modules(x):
    return MODELS[0](x) + MODELS[1](x)


def tensor_written(x):
    ones(2).add_(1)
    return x + ones(2) * mixed(2)[0] * mixed(2)[1]


def tensor_handed_out(x):
    return ones(2)


def differentiated(x):
    return Scaled.apply(x)


def recomputed(x):
    return checkpoint(lambda v: (v * settings().t).sin(), x, use_reentrant=False)


def in_a_loop(x):
    for _ in range(5):
        x = x + settings().t
    return x


def asks_and_clears(x):
    first = settings().t
    hits = settings.cache_info().hits
    settings.cache_clear()
    return x * (first + settings().t) + hits


PROGRAMS = [
    writes, several_keys, more_than_it_keeps, catches, within_another, prints, in_another_mode,
    written_before, written_after, methods_of_modules, tensor_written, tensor_handed_out,
    differentiated, recomputed, in_a_loop, asks_and_clears,
]  # fmt: skip


def change():
    settings().t = 5.0
    few(2)[0] = 9.0
    ones(2).mul_(2)


def clear():
    for cached in CACHES:
        cached.cache_clear()


def story(call, steps):
    clear()
    CONFIG["t"] = 1.0
    seen: list[object] = []
    for step in steps:
        if step == "f":
            x = torch.ones(2, requires_grad=True)
            result = call(x)
            seen.append(result.tolist())
            if result.requires_grad:
                seen.append(torch.autograd.grad(result.sum(), x)[0].tolist())
        else:
            change() if step == "c" else clear()
        seen.append([tuple(cached.cache_info()) for cached in CACHES])
    return seen


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
@pytest.mark.parametrize("steps", ["cff", "ffcff", "ffc0fcf"])  # call, change, clear (0)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_see_the_live_cache(program, steps, capsys):
    want = story(program, steps), capsys.readouterr()
    tagged = jitmagic.jit(program, backend="eager")
    assert (story(tagged, steps), capsys.readouterr()) == want
