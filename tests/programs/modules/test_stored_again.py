"""Parameters and submodules stored where they are already, as `module.to(dtype)` does inside of
`forward`: nothing changes, so it is one graph; what does change is left to Python."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of


class Router(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.head, self.norm, self.dtype = nn.Linear(3, 2), nn.LayerNorm(3), dtype
        self.unused = None

    def forward(self, x: Tensor) -> Tensor:
        self.head = self.head.to(self.dtype)
        self.norm.weight = self.norm.weight
        return self.head(self.norm(x).to(self.dtype)).float()


class Exchanged(Router):
    """The other way round: a parameter that was another's."""

    def forward(self, x: Tensor) -> Tensor:
        self.norm.weight = self.norm.bias
        return self.norm(x)


def trained(tagged: bool, kind: type[Router], dtype: torch.dtype) -> tuple[list[object], Callable]:
    torch.manual_seed(1)
    model = kind(dtype)
    kept = list(model.named_parameters())
    run = jitmagic.jit(model, backend="eager") if tagged else model
    seen: list[object] = []
    for _ in range(2):
        x = torch.randn(4, 3)
        seen.append(run(x).sum().item())
        run(x).sum().backward()
    seen += [p.grad for _, p in model.named_parameters()]
    seen += [any(p is one for one in model.parameters()) for _, p in kept]
    return [*seen, [p.dtype for _, p in kept]], run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [Router, Exchanged])
def test_module_state_equals_eager(kind: type[Router], dtype: torch.dtype) -> None:
    ours, run = trained(True, kind, dtype)
    for got, want in zip(ours, trained(False, kind, dtype)[0], strict=True):
        if isinstance(want, Tensor):
            torch.testing.assert_close(got, want)
        else:
            assert got == want
    if (kind, dtype) == (Router, torch.float32):
        found = counts_of(run)
        assert (found.graphs, found.breaks) == (2, 0)  # the second where there are gradients


def test_registration_hooks_run() -> None:
    model = Router(torch.float32)
    run = jitmagic.jit(model, backend="eager")
    run(torch.ones(4, 3))
    names: list[str] = []

    def note(module: nn.Module, name: str, value: object) -> None:
        names.append(name)

    with nn.modules.module.register_module_module_registration_hook(note):
        run(torch.ones(4, 3))
    assert names == ["head"]


def test_data_of_a_tensor_stored_again() -> None:
    def step(w: Tensor, x: Tensor) -> Tensor:
        loss = (w * x).sum()
        loss.backward()
        w.data -= 0.1 * w.grad
        w.data = w.data[:].to(torch.float32)
        w.grad = None
        return loss.detach()

    def exchanged(w: Tensor, x: Tensor) -> Tensor:
        w.data = w.data - x
        w.data = w.data.t()
        return w * 2

    for program, breaks in ((step, 0), (exchanged, 1)):
        run = jitmagic.jit(program, backend="eager")
        found = []
        for fn in (run, program):
            w = torch.arange(4.0).view(2, 2).requires_grad_()
            held = w.data
            results = [fn(w, torch.full((2, 2), 0.5)) for _ in range(3)]
            found.append([*map(str, results), str(w), str(held), w._version])
        assert found[0] == found[1]
        assert (counts_of(run).breaks > 0) == breaks


MARKED = nn.Buffer(torch.ones(3), persistent=False)


class Marked(nn.Module):
    """`nn.Buffer` says itself what it is: made here, from outside, in the place of another."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.plain = where, 0.0
        self.register_buffer("old", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, list[str], list[str]]:
        module = nn.Module() if self.where == "new" else self
        module.made = nn.Buffer(x.detach() * 2)
        module.given = MARKED
        module.plain = x.detach() + 1  # no buffer
        if self.where == "replaced":
            module.old = nn.Buffer(x.detach() - 1)
        names = [name for name, _ in module.named_buffers()]
        return module.made + module.given + x, names, sorted(module.state_dict())


@pytest.mark.parametrize("where", ["new", "self", "replaced"])
def test_buffers_that_say_so_themselves_are_registered(where: str) -> None:
    plain, run = Marked(where), jitmagic.jit(Marked(where), backend="eager")
    for n in range(3):
        x = torch.full((3,), float(n), requires_grad=True)
        assert repr(run(x)) == repr(plain(x))
        assert sorted(run.state_dict()) == sorted(plain.state_dict())
        assert repr(dict(run.named_buffers())) == repr(dict(plain.named_buffers()))
