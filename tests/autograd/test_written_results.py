"""Random programs whose results are written to, views, and computed from one another: gradients of
each result with respect to each other, retained, hooked and of second order are eager's, or it is
said that the results are one node.
"""

from __future__ import annotations

import itertools
import linecache
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic

Function = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
NEW = (
    "{0}.sin()|{0} * 2|{0}.exp()|{0}.clone()|{0}.cumsum(0)|{0}.detach()|{0} * {1}|{0} + {1}|"
    "torch.where({1} > 0, {0}, {1})|{0} @ {1}.t() @ {1}"
).split("|")
BUFFERS = ("torch.zeros(3, 4)", "torch.ones_like({0})", "{0}.new_zeros(3, 4)", "torch.eye(3, 4)")
VIEWS = ("{0}[:2]", "{0}.view(-1)", "{0}.t()", "{0}[0]", "{0}[:, 1:3]")
WRITES = (
    "{0}.mul_({1})|{0}.add_({1})|{0}.copy_({1})|{0}[0] = {1}[1]|{0}[:, 1] = {1}[:, 0]|{0}.tanh_()|"
    "{0}[1:].mul_({1}[1:])|{0}.mul_(3)|{0}.fill_(0.5)|{0}.t()[1].copy_({1}.t()[0])|"
    "{0}.masked_fill_({1} > 0, 2.0)"
).split("|")


def written(seed: int) -> str:
    """A function of x and w, which require grad, and c."""
    rng = random.Random(seed)
    full, made, lines = ["x", "w", "c"], list[str](), list[str]()
    for _ in range(rng.randint(3, 8)):
        indent = "    " if rng.random() > 0.06 else "        "
        lines += ["    with torch.no_grad():"] if len(indent) > 4 else []
        own = [name for name in made if name in full]
        name, of = f"v{len(made)}", (rng.choice(full[-4:]), rng.choice(full[-4:]))
        kind = rng.random() if own else 0.0
        if kind > 0.55:
            lines.append(indent + rng.choice(WRITES).format(rng.choice(own), of[1]))
            continue
        forms = NEW if kind < 0.33 else BUFFERS if kind < 0.45 else VIEWS
        lines.append(f"{indent}{name} = {rng.choice(forms).format(*of)}")
        made.append(name)
        full += [name] if forms is not VIEWS else []
    shown = rng.sample(made, min(len(made), rng.randint(2, 4)))
    return "\n".join(["def f(x, w, c):", *lines, f"    return {', '.join(shown)},\n"])


def function(seed: int) -> Function:
    text, name, names = written(seed), f"<written {seed}>", {"torch": torch}
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), names)
    return names["f"]  # type: ignore[return-value]


class Run:
    """A call on leaves, or on what has a history, and the results that have one."""

    def __init__(self, f: Function, from_leaves: bool) -> None:
        draw = torch.Generator().manual_seed(3)
        x, w, c = (torch.randn(3, 4, generator=draw) * 0.7 for _ in range(3))
        self.leaves = [x.requires_grad_(), w.requires_grad_()]
        self.results = f(x, w, c) if from_leaves else f(x * 1, w.sin(), c)
        self.traced = [result for result in self.results if result.requires_grad]

    def loss(self, *chosen: int) -> Tensor:
        found = [(self.traced[n].square() * (n + 1) + self.traced[n]).sum() for n in chosen]
        return torch.stack(found).sum()


def between(run: Run) -> Any:
    others = [*run.leaves, *run.traced]
    for n in range(len(run.traced)):
        rest = [other for other in others if other is not run.traced[n]]
        yield torch.autograd.grad(run.loss(n), rest, retain_graph=True, allow_unused=True)


def retained(run: Run) -> Any:
    for result in run.traced:
        result.retain_grad()
    run.loss(*range(0, len(run.traced), 2)).backward()
    yield [tensor.grad for tensor in (*run.traced, *run.leaves)]


def hooked(run: Run) -> Any:
    seen: dict[int, Tensor] = {}
    for n, result in enumerate(run.traced):
        result.register_hook(lambda grad, n=n: (seen.update({n: grad.clone()}), grad * 2)[1])
    run.loss(0).backward()
    yield [seen.get(n) for n in range(len(run.traced))] + [leaf.grad for leaf in run.leaves]


def twice(run: Run) -> Any:
    how: dict[str, Any] = {"allow_unused": True, "create_graph": True}
    first = torch.autograd.grad(run.loss(*range(len(run.traced))), run.leaves, **how)
    total = [g.square().sum() for g in first if g is not None and g.requires_grad]
    yield first
    if total:
        yield torch.autograd.grad(torch.stack(total).sum(), run.leaves, allow_unused=True)


WAYS = (between, retained, hooked, twice)


def outcome(
    f: Function, from_leaves: bool, way: Callable[[Run], Any]
) -> list[Sequence[Tensor | None]] | str:
    """Return the values that `way` sees, or the error for a tensor written to since it was
    saved.
    """
    try:
        run = Run(f, from_leaves)
        seen: list[Sequence[Tensor | None]] = [[r.detach().clone() for r in run.results]]
        return seen + [list(found) for found in (way(run) if run.traced else ())]
    except RuntimeError as error:
        return str(error).split(":")[0]


def differences(seed: int) -> list[str]:
    """Return cases where the compiled function neither equals eager nor warns that it is one
    node.
    """
    f, found = function(seed), []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compiled = jitmagic.jit(f, backend="aot_eager", options={"keep": "compiled"})
        for way, from_leaves in itertools.product(
            (between, retained, hooked, twice), (True, False)
        ):
            want, got = outcome(f, from_leaves, way), outcome(compiled, from_leaves, way)
            try:
                if not isinstance(want, str):  # else an error of eager's
                    torch.testing.assert_close(got, want)
            except AssertionError as error:
                found.append(f"{way.__name__}, {from_leaves}: {error}\n{written(seed)}")
    is_said = any("are one autograd node" in str(warning.message) for warning in said)
    return [] if is_said else found


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_gradients_between_written_results(start: int) -> None:
    found = [text for seed in range(start, start + 10) for text in differences(seed)]
    assert not found, "\n\n".join(found)
