"""Generators that are tagged, with what uses them."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from .registry import drain, program


def counting(x: Tensor, n: int) -> Iterator[Tensor]:
    y = x
    for i in range(n):
        y = (y * 2 + i).sin()
        yield y


@program(counting)
def items_of_a_loop(f: Any) -> Any:
    return list(f(torch.arange(4.0), 5)), list(f(torch.ones(3), 0)), list(f(torch.ones(2), 1))


def echoing(x: Tensor) -> Generator[Tensor, Any, Tensor]:
    total = x
    while True:
        sent = yield total
        if sent is None:
            return total.sum()
        total = (total + sent).cos()


@program(echoing)
def values_sent(f: Any) -> Any:
    x = torch.arange(3.0)
    return drain(f(x), 1.0, 2.0, torch.ones(3), torch.zeros(3), None), drain(f(x), None)


def guarded(x: Tensor, log: list[str]) -> Generator[Any, Any, Any]:
    try:
        for k in range(3):
            y = x.exp() + k
            try:
                got = yield y
                log.append(f"got {got}")
            except ValueError as error:
                log.append(f"caught {error}")
                y = y * 2
                yield ("handled", y)
            else:
                yield y.sum()
    except KeyError as error:
        log.append(f"outer {error!r}")
        return "by key"
    finally:
        log.append("finally")
        x.sigmoid()


@program(guarded)
def exceptions_thrown_in(f: Any) -> Any:
    log: list[str] = []
    x = torch.arange(2.0)
    results: list[Any] = []
    g = f(x, log)
    results += [next(g), g.throw(ValueError("first")), next(g), g.send("hello")]
    try:
        g.throw(KeyError("stop"))
    except StopIteration as end:
        results.append(end.value)
    g = f(x, log)
    results.append(next(g))
    try:
        g.throw(TypeError("not caught"))
    except TypeError as error:
        results.append(str(error))
    g = f(x, log)
    next(g)
    g.close()
    with pytest.raises(ZeroDivisionError):
        f(x, log).throw(ZeroDivisionError)
    results.append(next(g, "over"))
    return results, log


def raising(x: Tensor, at: int) -> Iterator[Tensor]:
    for k in range(4):
        y = x * k
        if k == at:
            y.view(7)
        yield y


@program(raising)
def errors_between_yields(f: Any) -> Any:
    found: list[Any] = []
    for at in (0, 2, 5):
        g = f(torch.ones(3), at)
        try:
            for item in g:
                found.append(item)
        except RuntimeError as error:
            lines = traceback.extract_tb(error.__traceback__)
            found.append([(line.name, line.line) for line in lines])
            found.append(list(g))
    return found


def catching(x: Tensor) -> Iterator[Any]:
    try:
        yield x + 1
        y = x.view(7)
    except RuntimeError:
        y = x.sum()
    yield y
    try:
        y.backward()
    except RuntimeError as error:
        yield type(error).__name__
    finally:
        yield "in finally"
    yield y * 2


@program(catching)
def errors_that_are_caught(f: Any) -> Any:
    return list(f(torch.ones(3)))


def stopping(x: Tensor) -> Iterator[Tensor]:
    yield x
    next(iter([]))
    yield x


@program(stopping)
def stop_iteration_inside(f: Any) -> Any:
    g = f(torch.ones(1))
    next(g)
    try:
        next(g)
    except RuntimeError as error:
        return str(error), repr(error.__cause__)


def inner(x: Tensor, n: int) -> Generator[Any, Any, str]:
    for k in range(n):
        got = yield x + k
        if got is not None:
            x = x * got
    return f"inner {n}"


def delegating(x: Tensor) -> Generator[Any, Any, Any]:
    first = yield from inner(x.sin(), 2)
    second = yield from inner(x.cos(), 1)
    yield first, second
    rest = yield from [x, x * 2]
    yield from range(2)
    return first, rest


@program(delegating)
def yield_from(f: Any) -> Any:
    x = torch.arange(3.0)
    return drain(f(x)), drain(f(x), 2.0, 3.0)


def recursive(x: Tensor, depth: int) -> Iterator[Tensor]:
    yield x * depth
    if depth:
        yield from tree(x + 1, depth - 1)
        yield from tree(x.sin(), depth - 1)


tree: Any = recursive


@program(recursive)
def recursion(f: Any) -> Any:
    global tree
    tree = f
    return list(f(torch.ones(2), 3))


def under_no_grad(w: Tensor) -> Iterator[Any]:
    yield (w * 2).requires_grad
    with torch.no_grad():
        yield (w * 3).requires_grad, torch.is_grad_enabled()
        y = w * 4
        yield y.requires_grad
    yield (w * y).requires_grad, torch.is_grad_enabled()


@program(under_no_grad)
def grad_mode_across_yields(f: Any) -> Any:
    w = torch.ones(2, requires_grad=True)
    g, seen = f(w), []
    for item in g:
        seen.append((item, torch.is_grad_enabled(), (w * 1).requires_grad))
    g = f(w)
    next(g), next(g)
    seen.append(torch.is_grad_enabled())
    g.close()
    return seen, torch.is_grad_enabled()


def training(w: Tensor, rate: float) -> Generator[float, Tensor | None, str]:
    optimizer = torch.optim.SGD([w], lr=rate)
    while True:
        x = yield float(w.detach().sum())
        if x is None:
            return "done"
        optimizer.zero_grad()
        loss = ((w * x).sin() ** 2).sum()
        loss.backward()
        optimizer.step()


@program(training)
def training_steps(f: Any) -> Any:
    w = torch.arange(1.0, 4.0).requires_grad_()
    x = torch.linspace(0, 1, 3)
    seen = drain(f(w, 0.1), x, x * 2, x * 3, None)
    return [round(one, 4) if isinstance(one, float) else one for one in seen], w.detach().clone()


def closing_over(x: Tensor, scale: float) -> Iterator[Any]:
    def scaled(y: Tensor) -> Tensor:
        return y * scale

    yield scaled(x)
    scale = 3.0
    yield scaled(x)
    total = [scaled(x + k) for k in range(3)]
    yield total
    scale, x = 5.0, x + 1
    yield scaled(x), scaled


@program(closing_over)
def closures(f: Any) -> Any:
    items = list(f(torch.ones(2), 2.0))
    return items[:-1], items[-1][0], items[-1][1](torch.ones(1))


def unbound(x: Tensor, gives: bool) -> Iterator[Any]:
    if gives:
        late = x * 2
    yield "began"
    try:
        yield late
    except UnboundLocalError as error:
        yield str(error)
    late = x
    yield late + 1
    del late
    yield "deleted"
    print(late)  # noqa: F821


@program(unbound)
def unbound_variables(f: Any) -> Any:
    return drain(f(torch.ones(2), True)), drain(f(torch.ones(2), False))


def in_calls(x: Tensor) -> Generator[Any, Any, Any]:
    y = torch.add((yield x), (yield x * 2), alpha=(yield "alpha"))
    z = [y, (yield y.sum()), *(yield "list"), {"key": (yield "value")}]
    text = f"{(yield 'text')!r} and {x.add((yield 'method')).sum().item()}"
    return z, text, (yield "left") + (yield "right")


@program(in_calls)
def yields_inside_expressions(f: Any) -> Any:
    x = torch.ones(2)
    return drain(f(x), x, x * 3, 2, "a", [1, 2], "b", "c", x, 1, 2)


class Noted:
    """Notes when it is made and when it dies."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name
        log.append(f"made {name}")

    def __del__(self) -> None:
        self.log.append(f"dropped {self.name}")


def holding(x: Tensor, log: list[str]) -> Iterator[Tensor]:
    first = Noted(log, "first")
    yield x + 1
    log.append("after the first yield")
    for k in range(3):
        each = Noted(log, f"each {k}")
        log.append(f"in round {k}")
        yield x + k
    del first
    log.append("deleted")
    yield x
    each = None
    log.append("rebound")
    yield x * 3


@program(holding)
def when_objects_die(f: Any) -> Any:
    log: list[str] = []
    for item in f(torch.ones(1), log):
        log.append(f"item {item.item()}")
    abandoned = f(torch.ones(1), log)
    next(abandoned), next(abandoned), next(abandoned)
    del abandoned
    log.append("abandoned")
    return log


def with_manager(x: Tensor, log: list[str]) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, "callback")
        with manager(log) as value:
            y = x + value
            yield y
            yield y.sum()
        yield "outside"
    yield len(log)


@contextlib.contextmanager
def manager(log: list[str]) -> Iterator[int]:
    log.append("enter")
    try:
        yield 7
    except ValueError:
        log.append("suppressed")
    finally:
        log.append("exit")


@program(with_manager)
def context_managers(f: Any) -> Any:
    log: list[str] = []
    found = [drain(f(torch.ones(2), log))]
    g = f(torch.ones(2), log)
    found.append([next(g), g.throw(ValueError("x")), next(g)])
    g = f(torch.ones(2), log)
    next(g)
    g.close()
    return found, log


def drawing(x: Tensor) -> Iterator[Tensor]:
    y = x + torch.rand(3)
    yield y
    yield torch.nn.functional.dropout(y, 0.5)
    yield torch.randn(2)


@program(drawing)
def random_numbers(f: Any) -> Any:
    torch.manual_seed(3)
    found: list[Any] = []
    for item in f(torch.ones(3)):
        found += [item, torch.rand(2)]
    return found


def writing(x: Tensor, others: dict[str, Any]) -> Iterator[Any]:
    x.add_(1)
    others["count"] = others.get("count", 0) + 1
    yield x
    view = x[1:]
    view.mul_(2)
    others["view"] = view
    yield view
    view.zero_()


@program(writing)
def mutations(f: Any) -> Any:
    x, others, found = torch.arange(3.0), {}, []
    for _ in f(x, others):
        found += [x.clone(), others.get("count")]
        x += 10
    return found, x, others["view"].data_ptr() == x[1:].data_ptr()


def printing(x: Tensor) -> Iterator[Tensor]:
    print("before", tuple(x.shape))
    yield x.sin()
    print("between", float(x.sum()))
    yield x.cos()
    print("after")


@program(printing)
def printed_text(f: Any) -> Any:
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out:
        items = list(f(torch.ones(2)))
    return items, out.getvalue()
