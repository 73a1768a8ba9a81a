"""A file has what a program reads, wherever that is, and refuses writes that calls would read."""

from __future__ import annotations

import functools
import logging
from typing import Any

import pytest
import torch
from torch import nn

import jitmagic
from jitmagic.errors import CannotKeep

SCALE = torch.full((2,), 1.5)
HITS: dict[str, int] = {}
LOG: list[torch.Tensor] = []
COUNT = 0


class Plain:
    """An object of the program with attributes."""

    def __init__(self) -> None:
        self.count, self.scale = 0, torch.full((2,), 3.0)


PLAIN = Plain()


@functools.lru_cache(8)
def settings(name: str, *, kind: type = Plain) -> Any:
    """Return an object that a cache holds, as model libraries do with what they look up."""
    made = kind()
    made.scale *= len(name)
    return made


@functools.lru_cache(8)
def length(name: str) -> int:
    return len(name)


def wrapped(function: Any) -> Any:
    """Call a method through a wrapper, as transformers does with `forward`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Block(nn.Module):
    """A forward behind a wrapper; a weight with two names, and buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
        self.two.weight = self.one.weight
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.state = Plain()
        self.cache: Any = None

    @wrapped
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.two(self.one(x)) * scale + self.mean + self.scratch


def load(path: Any, program: Any, *args: Any, **options: Any) -> Any:
    with torch.no_grad():
        jitmagic.save(program, path, *args, **options)
    return jitmagic.load(path)


def test_forward_behind_a_wrapper(tmp_path):
    model, x = Block(), torch.randn(3, 2)
    loaded = load(tmp_path / "f", model, (x,), (x, 2.0))
    with torch.no_grad():
        assert torch.equal(loaded(x), jitmagic.jit(model)(x))
        torch.testing.assert_close(loaded(x, 2.0), model(x, 2.0))
    assert {*loaded.state_dict()} == {*model.state_dict()}
    assert loaded.one.weight is loaded.two.weight


def test_members_that_are_replaced_or_loaded_are_used(tmp_path):
    model, other, x = Block(), Block(), torch.randn(3, 2)
    loaded = load(tmp_path / "f", model, x)
    loaded.load_state_dict(other.state_dict())
    loaded.mean = torch.ones(2)
    other.mean = torch.ones(2)
    torch.testing.assert_close(loaded(x), other(x))


def test_values_at_any_place(tmp_path):
    inner = {"deep": [torch.tensor([1.0, 2.0]), {"er": torch.tensor([0.5, 0.25])}]}

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE + inner["deep"][0] * inner["deep"][1]["er"] + PLAIN.scale

    x = torch.randn(2)
    torch.testing.assert_close(load(tmp_path / "f", program, x)(x), program(x))


def test_equal_texts_of_sources_are_two_values(tmp_path):
    def scaled(by: torch.Tensor) -> Any:
        return lambda x: x * by

    functions = [scaled(torch.tensor([2.0, 3.0])), scaled(torch.tensor([5.0, 7.0]))]
    one, two = functions

    def program(x: torch.Tensor) -> torch.Tensor:
        return one(x) - two(x)

    x = torch.randn(2)
    torch.testing.assert_close(load(tmp_path / "f", program, x)(x), program(x))


def test_an_example_of_the_programs_own_tensors_is_for_others_too(tmp_path):
    held, x = torch.ones(2), torch.full((2,), 5.0)
    programs = (lambda x: x[0] + held, lambda x: x[0] * 100 if x[0] is held else x[0] + 1)
    for number, program in enumerate(programs):
        assert load(tmp_path / str(number), program, [held])([x]).tolist() == [6.0, 6.0]

    empty, act = (), torch.relu  # one object wherever they are, or compared by themselves

    def adds(x, f, *more):
        return f(act(x)) * len(more + empty if more is not empty else "ab")

    loaded = load(tmp_path / "f", adds, (held, act), (held, act, 1))
    for more, wanted in (((), 10.0), ((1,), 5.0)):
        assert loaded(torch.full((2,), 5.0), act, *more).tolist() == [wanted, wanted]
    objects = [torch.ones(2)]
    with pytest.raises(CannotKeep, match="an argument that is objects too"):
        load(tmp_path / "f", lambda x: x[0] + objects[0], objects)


def test_a_member_in_a_list_is_not_the_member(tmp_path):
    class Listed(Block):
        def __init__(self):
            super().__init__()
            self.parts = [self.mean, self.one.weight]

        def forward(self, x, assigns=False):
            if assigns:
                self.mean = self.mean + x
                return x
            return self.parts[0] * 2 + x @ self.parts[1]

    model, x = Listed(), torch.ones(2)
    with torch.no_grad():
        jitmagic.save(model, tmp_path / "f", (x,), (x, True))
        loaded = jitmagic.load(tmp_path / "f")
        for call in ((x,), (x, True), (x,)):
            torch.testing.assert_close(loaded(*call), model(*call))
        assert torch.equal(loaded.mean, model.mean)

    class Both(Listed):
        def forward(self, x):
            y = self.parts[0] + x
            self.mean = self.mean * 2
            return y

    with pytest.raises(CannotKeep, match="on whose value the program depends"):
        load(tmp_path / "g", Both(), x)


def test_methods_of_objects_and_classes(tmp_path):
    class Scales(Plain):
        def call(self, x, times=2):
            return x * self.scale * times

        @classmethod
        def of_class(cls, x):
            return x * 2

    x = torch.ones(2)
    loaded = load(tmp_path / "f", Scales().call, (x,), {"x": x, "times": 3})
    assert (loaded(x).tolist(), loaded(x, times=3).tolist()) == ([6.0, 6.0], [9.0, 9.0])
    assert load(tmp_path / "g", Scales.of_class, x)(x).tolist() == [2.0, 2.0]


def test_assigned_buffers_are_those_of_the_loaded_module(tmp_path):
    class Average(Block):
        def forward(self, x):
            self.mean = self.mean * 0.5 + x
            return self.mean * 2

    model, x = Average(), torch.ones(2)
    loaded = load(tmp_path / "f", model, x)
    for _ in range(3):
        assert torch.equal(loaded(x), model(x))
        assert torch.equal(loaded.mean, model.mean)


def written_and_read(kind: str) -> Any:
    """Return a program that reads what an earlier call of it has written."""

    def in_dict(x):
        HITS["n"] = HITS.get("n", 0) + 1
        return x * HITS["n"]

    def in_globals(x):
        globals()["COUNT"] = len(globals())
        return x * COUNT

    def in_whole_dict(x):
        HITS[str(len(HITS))] = 1
        return x * len(HITS)

    def in_list(x):
        LOG.append(x)
        return x * len(LOG)

    class InModule(Block):
        def forward(self, x):
            if self.cache is None:
                self.cache = torch.ones(2)
            return x + self.cache

    class InBuffer(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("filled", None)

        def forward(self, x):
            if self.filled is None:
                self.filled = x * 2
                return x
            return x + self.filled

    class InFlag(Block):
        def forward(self, x):
            self.cache = not self.cache
            return x * 2 if self.cache else x

    made = {"missing key": in_dict, "globals": in_globals, "whole dict": in_whole_dict}
    classes = {"module": InModule, "flag": InFlag, "buffer": InBuffer, "list": lambda: in_list}
    return made.get(kind) or classes[kind]()


KINDS = ["missing key", "whole dict", "list", "globals", "module", "flag", "buffer"]


@pytest.mark.parametrize("kind", KINDS)
def test_writes_that_calls_read_are_refused(tmp_path, kind):
    with pytest.raises(CannotKeep, match="a write to"):
        load(tmp_path / "f", written_and_read(kind), torch.ones(2))


def test_writes_of_one_call_that_another_reads_are_refused(tmp_path):
    class Keeps(Block):
        def forward(self, x, reads=False):
            if reads:
                return x if self.cache is None else x + self.cache
            self.cache = x
            return x * 2

    x = torch.ones(2)
    assert load(tmp_path / "f", Keeps(), x)(x).tolist() == [2.0, 2.0]
    with pytest.raises(CannotKeep, match="a write to self.cache"):
        load(tmp_path / "f", Keeps(), (x,), (x, True))


def test_writes_that_no_call_reads_are_left_to_the_file(tmp_path):
    class Writes(Block):
        def forward(self, x):
            self.cache = x * 2
            self.state.last = x
            LOG.append(x)
            return self.cache + 1

    model, x = Writes(), torch.ones(2)
    loaded = load(tmp_path / "f", model, x)
    for _ in range(3):
        assert loaded(x).tolist() == [3.0, 3.0]
    assert model.cache is None and not LOG and not hasattr(model.state, "last")


def test_state_that_a_call_restores_may_be_read(tmp_path):
    class Restores(Block):
        def forward(self, x):
            before, self.state.count = self.state.count, 5
            y = x * self.state.count
            self.state.count = before
            return y

    x = torch.ones(2)
    assert load(tmp_path / "f", Restores(), x)(x).tolist() == [5.0, 5.0]


def test_functions_with_a_cache_are_in_a_file_with_their_results(tmp_path):
    class Looks(Block):
        def forward(self, x):
            return x * settings("a", kind=Plain).scale + x * length("abc")

    model, x = Looks(), torch.randn(2)
    expected = model(x)
    loaded, found = load(tmp_path / "f", model, x), settings.cache_info()
    assert torch.equal(loaded(x), expected)
    assert settings.cache_info() == found  # the file has the results, and calls no function
    length.cache_clear()
    with pytest.raises(CannotKeep, match=r"a call of .*length.*\n  hint: .*call the program once"):
        load(tmp_path / "g", model, x)


def test_a_cached_function_that_runs_in_each_call_is_refused(tmp_path):
    class Logs(Block):
        def forward(self, x, other):
            noted(other)
            return x * 2

    @functools.lru_cache(8)
    def noted(other):
        logging.getLogger(__name__).debug("called")

    other = Plain()
    Logs()(torch.ones(2), other)
    with pytest.raises(CannotKeep, match="a call of .*noted"):
        load(tmp_path / "f", Logs(), torch.ones(2), other)


def test_writes_to_memory_that_two_tensors_share_are_refused(tmp_path):
    class Shares(Block):
        def __init__(self):
            super().__init__()
            self.whole = torch.zeros(4)
            self.part = self.whole[:2]

        def forward(self, x, reads=False):
            return self.whole * 2 if reads else self.part.add_(x) * 2

    with pytest.raises(CannotKeep, match="share memory"):
        load(tmp_path / "f", Shares(), (torch.ones(2),), (torch.ones(2), True))
