"""Classes defined inside a function: inert ones are no break, a used one is Python's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitmagic

from ..counts import counts_of


class Base:
    heard: list[str] = []

    def __init_subclass__(cls) -> None:
        Base.heard.append(cls.__name__)


class Hears:
    def __set_name__(self, owner: type, name: str) -> None:
        Base.heard.append(name)


def unused(x: torch.Tensor) -> Any:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    return Doubled.apply(x) if x.dim() == 3 else x * 2


def returned(x: torch.Tensor) -> Any:
    y = x * 2

    class Box:
        value = 3

    return Box.__name__, Box.value, y


def constructed(x: torch.Tensor) -> Any:
    class Box:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

        def twice(self) -> torch.Tensor:
            return self.value * 2

    return Box(x + 1).twice() - 1


def heard_by_a_base(x: torch.Tensor) -> Any:
    class Child(Base):
        pass

    return x + 1, list(Base.heard)


def heard_by_a_member(x: torch.Tensor) -> Any:
    class Owner:
        member = Hears()

    return x + 1, list(Base.heard)


def with_slots(x: torch.Tensor) -> Any:
    class Slotted:
        __slots__ = "value"
        value = 3

    return x + 1


def final_base(x: torch.Tensor) -> Any:
    class Truth(bool):
        pass

    return x + 1


PROGRAMS = (
    unused, returned, constructed, heard_by_a_base, heard_by_a_member, with_slots, final_base,
)  # fmt: skip


def _seen(run: Any, x: torch.Tensor) -> Any:
    Base.heard = []
    results = []
    for _ in range(2):
        try:
            made = run(x)
        except Exception as error:
            results.append((type(error), str(error)))
            continue
        parts = made if isinstance(made, tuple) else (made,)
        results.append([p.tolist() if isinstance(p, torch.Tensor) else p for p in parts])
    return results, Base.heard


@pytest.mark.parametrize("shape", [(3,), (0,), (2, 3, 1)], ids=str)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_eager(program: Any, backend: str, shape: tuple[int, ...]) -> None:
    x = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    expected = _seen(program, x)
    assert _seen(jitmagic.jit(program, backend=backend), x) == expected


def test_unused_class_is_no_break() -> None:
    x = torch.ones(3, requires_grad=True)
    compiled = jitmagic.jit(unused, fullgraph=True)
    compiled(x).sum().backward()
    assert counts_of(compiled).breaks == 0
    assert torch.equal(x.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]


def test_init_subclass_added_later_recompiles() -> None:
    class Quiet:
        pass

    def f(x: torch.Tensor) -> torch.Tensor:
        class Child(Quiet):
            pass

        return x + 1

    x, heard = torch.ones(3), []
    compiled = jitmagic.jit(f, fullgraph=True)
    compiled(x)
    Quiet.__init_subclass__ = classmethod(lambda cls: heard.append(cls.__name__))  # type: ignore[method-assign]
    jitmagic.jit(f)(x)
    with pytest.raises(jitmagic.Unsupported):
        compiled(x)
    assert heard == ["Child"]
