"""Random numbers of Python and numpy: eager's, and the generators are left as eager leaves them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import jitmagic

from ..counts import counts_of

RNG, PYTHON = np.random.default_rng(1), random.Random(3)
OLD = np.random.RandomState(2)


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    PYTHON.seed(3)
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state
    OLD.seed(2)


def _states() -> list[object]:
    numbers = [np.random.get_state(legacy=False), OLD.get_state(legacy=False)]
    keys = [(s["state"]["key"].tolist(), s["state"]["pos"]) for s in numbers]  # type: ignore[index]
    bits: Any = RNG.bit_generator.state
    return [random.getstate(), PYTHON.getstate(), keys, bits, torch.get_rng_state().tolist()]


def mixup(x: Tensor) -> Tensor:
    share = np.random.beta(0.4, 0.4)
    order = torch.as_tensor(np.random.permutation(len(x)))
    return share * x + (1 - share) * x[order]


def clipped(x: Tensor) -> tuple[Tensor, float]:
    share = max(0.1, min(random.gauss(0, 1), 0.9))
    return x * share, share


def mixed(x: Tensor) -> Tensor:
    scale = random.uniform(0.5, 1.5) * random.randint(1, 5) + random.choice([1.0, 2.0])
    noise = torch.from_numpy(np.random.randn(*x.shape)).to(x.dtype)
    return x * scale + noise * OLD.standard_normal() + torch.randn_like(x)


def of_objects(x: Tensor) -> tuple[Tensor, Any]:
    drawn = RNG.normal(size=(4,)).astype(np.float32)
    return x * float(RNG.random()) + torch.from_numpy(drawn) * PYTHON.random(), drawn


def number_of_numpy(x: Tensor) -> Tensor:
    return x * int(RNG.integers(1, 9))


def kept(x: Tensor) -> tuple[Tensor, float, int]:
    return x + 1, random.random(), np.random.randint(10)


def cropped(x: Tensor) -> Tensor:
    row, column = random.randrange(3), np.random.randint(3)
    return x[row : row + 2, column : column + 2].sin() + x[random.randint(0, 4)][:2]


def cut_out(x: Tensor) -> Tensor:
    row, y = random.choice([0, 1, 2]), x.clone()
    y[row : row + 2] = random.random()
    return y


def as_many(x: Tensor) -> tuple[Tensor, ...]:
    count, start = OLD.randint(1, 4), np.random.randint(low=0, high=4)
    return torch.arange(count), x[:count], x.narrow(0, count, 1), x[start : start + 2]


WHOLE: list[Callable[[Tensor], Any]] = [
    mixup, clipped, mixed, of_objects, kept, cropped, cut_out, as_many,
]  # fmt: skip


def branch(x: Tensor) -> Tensor:
    y = x * np.random.rand()
    return y * 2 if random.random() < 0.5 else y.sin()


def shuffled(x: Tensor) -> Tensor:
    order = list(range(len(x)))
    random.shuffle(order)
    return x[order] * random.random()


def refused(x: Tensor) -> Tensor:
    try:
        return x.mul(random.uniform("a", 1))  # type: ignore[arg-type]
    except TypeError:
        return x + np.random.rand()


def in_both_directions(x: Tensor) -> Tensor:
    return x.roll(random.randint(-2, 2), 0)


BROKEN: list[Callable[[Tensor], Any]] = [
    branch, shuffled, refused, number_of_numpy, in_both_directions,
]  # fmt: skip


def _observed(run: Callable[[Tensor], Any]) -> list[object]:
    _seed()
    results = [run(torch.linspace(-1, 1, 20).reshape(5, 4)) for _ in range(4)]
    return [results, _states()]


def _agree(eager: Any, ours: Any) -> None:
    assert type(eager) is type(ours)
    if isinstance(eager, tuple | list):
        for one, other in zip(eager, ours, strict=True):
            _agree(one, other)
    elif isinstance(eager, Tensor | np.ndarray):
        torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(eager))
    else:
        assert eager == ours


def made_of_a_seed(x: Tensor, seed: int) -> Any:
    rng, old, python = np.random.default_rng(seed), np.random.RandomState(7), random.Random(seed)
    order = torch.from_numpy(old.permutation(len(x)))
    noise = torch.from_numpy(rng.normal(size=x.shape).astype(np.float32))
    return x[order] + noise * python.random(), old.randint(9), python


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_generators_made_in_the_frame(backend: str) -> None:
    tagged = jitmagic.jit(made_of_a_seed, backend=backend, fullgraph=True)
    x = torch.arange(8.0).reshape(4, 2)
    for seed in (3, 3, 5, 2**40):
        (wanted, number, python), made = made_of_a_seed(x, seed), tagged(x, seed)
        torch.testing.assert_close(made[0], wanted)
        assert made[1] == number
        assert made[2].getstate() == python.getstate()
    assert counts_of(tagged).graphs == 2
    with pytest.raises(ValueError, match="non-negative"):
        jitmagic.jit(made_of_a_seed, backend=backend)(x, -1)


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("function", [*WHOLE, *BROKEN], ids=lambda f: f.__name__)
def test_as_eager(function: Callable[[Tensor], Any], backend: str) -> None:
    tagged = jitmagic.jit(function, backend=backend)
    _agree(_observed(function), _observed(tagged))
    if function in WHOLE:
        counts = counts_of(tagged)
        assert (counts.graphs, counts.breaks) == (1, 0)


def test_draws_repeat_when_eager_restarts() -> None:
    """A graph that raises is followed by eager from the frame's start: it draws the same."""

    def lookup(x: Tensor, at: Tensor) -> Tensor:
        return x[at] * random.random() + np.random.rand()

    def run(function: Callable[..., Any]) -> object:
        _seed()
        seen: list[object] = []
        for at in (1, 99, 2):
            try:
                seen.append(function(torch.ones(5, 4), torch.tensor([at])))
            except IndexError as error:
                seen.append(str(error))
        return [seen, _states()]

    _agree(run(lookup), run(jitmagic.jit(lookup)))


def test_drawn_index_out_of_range_raises_as_in_eager() -> None:
    def picked(x: Tensor) -> Tensor:
        return x[random.randrange(8)] * random.random()

    def run(function: Callable[..., Any]) -> object:
        _seed()
        seen: list[object] = []
        for _ in range(8):
            try:
                seen.append(function(torch.arange(20.0).reshape(5, 4)))
            except IndexError as error:
                seen.append(str(error))
        return [seen, _states()]

    tagged = jitmagic.jit(picked)
    expected: Any = run(picked)
    assert {type(one) for one in expected[0]} == {str, Tensor}
    _agree(expected, run(tagged))
    assert counts_of(tagged).breaks == 0


INTS: dict[str, Callable[[], Any]] = {
    "randint": lambda: random.randint(3, 6),
    "randrange": lambda: random.randrange(4),
    "randrange between": lambda: PYTHON.randrange(-2, 3),
    "steps": lambda: random.randrange(0, 9, 4),
    "steps down": lambda: random.randrange(10, 0, -1),
    "choice": lambda: random.choice([7, -3, 2]),
    "numpy's randint": lambda: np.random.randint(4),
    "numpy's randint between": lambda: OLD.randint(2, 5),
    "numpy's choice": lambda: np.random.choice(3),
    "integers": lambda: RNG.integers(-1, 3),
    "integers with the end": lambda: RNG.integers(0, 3, None, np.int64, True),
    "integers with the end, named": lambda: RNG.integers(0, 3, endpoint=True),
}


@pytest.mark.filterwarnings("ignore::jitmagic.RecompileWarning")  # where they do not tell
@pytest.mark.parametrize("name", INTS)
def test_assumed_range_of_drawn_ints_holds(name: str) -> None:
    """A branch on it is answered by the bounds of the draw where they tell."""
    draw = INTS[name]

    def branches(x: Tensor) -> list[Tensor]:
        n = draw()
        return [x * 2 if n < bound else x * 3 for bound in range(-4, 12)]

    def run(function: Callable[..., Any]) -> list[object]:
        _seed()
        return [*(function(torch.ones(2)) for _ in range(24)), _states()]

    _agree(run(branches), run(jitmagic.jit(branches, backend="aot_eager")))


def test_other_generator_recompiles() -> None:
    class Loud(random.Random):
        def random(self) -> float:
            return 0.25

    def scaled(x: Tensor, rng: random.Random) -> Tensor:
        return x * rng.random()

    tagged = jitmagic.jit(scaled)
    for rng in (random.Random(1), random.Random(2), Loud(1)):
        state = rng.getstate()
        expected = scaled(torch.ones(3), rng)
        rng.setstate(state)
        torch.testing.assert_close(tagged(torch.ones(3), rng), expected)


def test_differentiated() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x * random.random() + x**2 * np.random.uniform(1, 2)).sum()

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        _seed()
        x = torch.linspace(0, 1, 5, requires_grad=True)
        function(x).backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(gradient(jitmagic.jit(loss)), gradient(loss))


def of_torch(x: Tensor, generator: torch.Generator | None) -> Tensor:
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    order = torch.randperm(len(x), generator=generator)
    return x[order] + noise * torch.rand(4, generator=generator) + torch.randn_like(x)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_generators_of_torch(backend: str) -> None:
    """Others take the place of the first; torch's own is shared with what the graph draws."""
    tagged = jitmagic.jit(of_torch, backend=backend)

    def run(function: Callable[..., Any]) -> object:
        _seed()
        made = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
        given = [*made, None, torch.default_generator, made[0]]
        results = [function(torch.linspace(-1, 1, 20).reshape(5, 4), one) for one in given]
        return [results, [one.get_state() for one in made], torch.get_rng_state()]

    _agree(run(of_torch), run(tagged))
    assert counts_of(tagged).graphs >= 2


def test_a_generator_of_torch_is_one_graph() -> None:
    generator = torch.Generator().manual_seed(3)

    def noisy(x: Tensor) -> Tensor:
        return x + torch.randn(5, 4, generator=generator)

    tagged = jitmagic.jit(noisy)
    results = [tagged(torch.zeros(5, 4)) for _ in range(3)]
    generator.manual_seed(3)
    _agree([noisy(torch.zeros(5, 4)) for _ in range(3)], results)
    counts = counts_of(tagged)
    assert (counts.graphs, counts.breaks) == (1, 0)
