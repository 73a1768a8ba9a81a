"""Nothing is silent: the notice about plain Python, failed compiles, growing sizes, the limit."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.compile import pipeline, sized_joint
from jitmagic.records import COMPILED, Eager, Failed

from ..processes import run_forked
from ..stages import caller_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[str]:
    return [line for line in stream.getvalue().splitlines() if "plain Python" in line]


def breaks(x: Tensor) -> Tensor:
    y = x * 2
    print(end="")
    print(end="")
    return y.relu()


def looks(x: Tensor) -> Tensor:
    assert locals()
    return x.relu()


def plain(x: Tensor) -> Tensor:
    return x.sin()


def raises(x: Tensor) -> Tensor:
    if x.ndim == 1:
        raise ValueError("of the user's own")
    return x


def asked(x: Tensor) -> Tensor:
    jitmagic.graph_break()
    return x.sin()


X = torch.linspace(-1, 1, 6)


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def dual(run: Callable[..., Any]) -> Any:
    with torch.autograd.forward_ad.dual_level():
        return run(torch.autograd.forward_ad.make_dual(X, X))


def mode(run: Callable[..., Any]) -> Any:
    with Mode():
        return run(X)


TOLD: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "break": (breaks, lambda run: run(X), "partly as plain Python: test_notice.py, line"),
    "eager": (looks, lambda run: run(X), "`assert locals()` it inspects its own frame"),
    "transform": (plain, lambda run: torch.func.functionalize(run)(X), "functionalize"),
    "dual": (plain, dual, "forward-mode"),
    "sparse": (plain, lambda run: run(X.to_sparse()), "layout is torch.sparse"),
    "mode": (plain, mode, "mode is active"),
}


@pytest.mark.parametrize("kind", TOLD)
def test_one_dim_line_says_where_and_why(kind: str) -> None:
    fn, call, why = TOLD[kind]
    run = jitmagic.jit(fn)
    with redirect_stderr(Terminal()) as terminal:
        for _ in range(3):
            call(run)
    (line,) = lines(terminal)
    assert why in line
    assert "explain(fn)" in line
    assert '"notices": "never"' in line
    assert "\x1b[2m" in line
    # Under functionalize the line is the caller's, which applies it.
    code = (call if kind == "transform" else fn).__code__
    first = code.co_firstlineno
    last = max(n for *_, n in code.co_lines() if n)
    number = int(line.partition("line ")[2].partition(",")[0])
    assert first <= number <= last


@pytest.mark.parametrize("fn", [plain, asked, raises], ids=lambda fn: fn.__name__)
def test_no_notice_if_everything_is_compiled_or_eager_was_requested(fn: Callable[..., Any]) -> None:
    run = jitmagic.jit(fn)
    with redirect_stderr(Terminal()) as terminal, suppress(ValueError):
        run(X)
    assert lines(terminal) == []


def test_the_line_can_be_silenced() -> None:
    with redirect_stderr(Terminal()) as terminal, warnings.catch_warnings():
        jitmagic.jit(breaks, options={"notices": "never"})(X)
        warnings.simplefilter("ignore", jitmagic.EagerNotice)
        jitmagic.jit(breaks)(X)
        warnings.simplefilter("ignore")
        jitmagic.jit(breaks)(X)
    assert lines(terminal) == []


def test_noninteractive_runs_get_the_notice_only_on_request() -> None:
    with redirect_stderr(io.StringIO()) as file:
        jitmagic.jit(breaks)(X)
    assert file.getvalue() == ""
    with redirect_stderr(file), warnings.catch_warnings():
        warnings.simplefilter("error")  # it is no warning, so it does not raise
        jitmagic.jit(breaks, options={"notices": "always"})(X)
    assert len(lines(file)) == 1
    assert "\x1b" not in file.getvalue()


# ------------------------------------------------------------------------------- failed compiles


@pytest.mark.parametrize("stage", ["trace", "trace_joint", "partition", "lower", "render", "load"])
def test_a_failed_compile_keeps_its_exception(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a bug of ours")

    monkeypatch.setattr(caller_of(stage), stage, broken)
    run = jitmagic.jit(plain)
    with pytest.warns(jitmagic.FallbackWarning) as caught:
        torch.testing.assert_close(run(X), plain(X))
    (warning,) = caught
    name = stage.removeprefix("trace_")
    assert name in str(warning.message).partition("and runs as eager")[0]
    assert "minify(" in str(warning.message)
    handle = handle_of(run)
    assert handle is not None
    outcome = handle.journal.records[-1].outcome
    assert isinstance(outcome, Failed)
    assert outcome.stage.rpartition(": ")[2] == name
    assert 'raise AssertionError("a bug of ours")' in outcome.traceback
    strict = jitmagic.jit(plain, options={"on_error": "raise"})
    for _ in range(2):
        with pytest.raises(AssertionError, match="a bug of ours"):
            strict(X)
    monkeypatch.undo()
    torch.testing.assert_close(strict(X), plain(X))


@pytest.mark.parametrize("stage", ["lower", "schedule", "render", "load"])
def test_a_failed_backward_keeps_its_exception(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, strict = jitmagic.jit(plain), jitmagic.jit(plain, options={"on_error": "raise"})
    x, y, z = (X.clone().requires_grad_() for _ in range(3))
    results = [run(x), strict(y)]  # the forwards are compiled by sound stages

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a bug of ours")

    monkeypatch.setattr(caller_of(stage), stage, broken)
    with pytest.warns(jitmagic.FallbackWarning) as caught:
        results[0].sum().backward()
    plain(z).sum().backward()
    torch.testing.assert_close(x.grad, z.grad)
    (warning,) = caught
    told = f"the backward of plain could not be compiled (stage backward: {stage}) and is replayed"
    assert str(warning.message).startswith(told)
    assert "minify(" in str(warning.message)
    handle = handle_of(run)
    assert handle is not None
    outcome = handle.journal.records[-1].outcome
    assert isinstance(outcome, Failed)
    assert 'raise AssertionError("a bug of ours")' in outcome.traceback
    for _ in range(2):
        with pytest.raises(AssertionError, match="a bug of ours"):
            results[1].sum().backward(retain_graph=True)
    monkeypatch.undo()
    results[1].sum().backward()
    torch.testing.assert_close(y.grad, z.grad)


def test_a_function_that_always_fails_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """First for one size; then for all sizes, which fails too; then with the size as a constant."""
    tried = []

    def broken(gm: Any, specs: Any) -> Any:
        tried.append(specs)
        raise AssertionError("a bug of ours")

    monkeypatch.setattr(pipeline, "trace_joint", broken)
    monkeypatch.setattr(sized_joint, "trace_sized_joint", broken)
    run = jitmagic.jit(plain)
    with pytest.warns(jitmagic.FallbackWarning) as caught:
        results = [run(torch.zeros(n)) for n in (3, 9, 5, 7, 2)]
    assert [len(result) for result in results] == [3, 9, 5, 7, 2]
    assert (len(tried), len(caught)) == (4, 1)


# -------------------------------------------------------------------------------- sizes that grow


def grown_by_cat(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    cache = torch.cat([cache, x])
    return cache.softmax(0), cache


def of_a_list(x: Tensor, seen: list[Tensor]) -> Tensor:
    return x + sum(seen)  # type: ignore[no-any-return]


def drive_cat(run: Callable[..., Any]) -> list[Tensor]:
    cache, results = torch.zeros(1, 4), []
    for n in range(10):
        result, cache = run(torch.full((1, 4), float(n)), cache)
        results.append(result)
    return results


def drive_list(run: Callable[..., Any]) -> list[Tensor]:
    return [run(X, [X] * n) for n in range(1, 10)]


def of_a_position(x: Tensor, cache: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """Positions differ as well, and are read first."""
    x = x + torch.arange(at, at + 1).float()
    return (cache := torch.cat([cache, x])).softmax(0), cache


def drive_position(run: Callable[..., Any]) -> list[Tensor]:
    cache, results = torch.zeros(1, 4), []
    for n in range(10):
        result, cache = run(torch.full((1, 4), float(n)), cache, n)
        results.append(result)
    return results


GROWING = {
    "cat": (grown_by_cat, drive_cat),
    "list": (of_a_list, drive_list),
    "position": (of_a_position, drive_position),
}


@pytest.mark.parametrize("kind", GROWING)
def test_growing_sizes_are_detected_at_the_third_call(kind: str) -> None:
    fn, drive = GROWING[kind]
    run = jitmagic.jit(fn, dynamic=False)
    with pytest.warns(jitmagic.RecompileWarning) as caught:
        results = drive(run)
    (warning,) = caught
    assert str(warning.message).startswith(f"{fn.__name__}: ")
    assert "grows by one with every call" in str(warning.message)
    assert warning.filename == __file__
    for result, wanted in zip(results, drive(fn), strict=True):
        torch.testing.assert_close(result, wanted)
    handle = handle_of(run)
    assert handle is not None
    assert len(handle.dispatcher.entries) == 2
    assert isinstance(handle.outcome, Eager)


def test_a_growing_dimension_becomes_a_symbol_at_the_second_call() -> None:
    run = jitmagic.jit(grown_by_cat)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.RecompileWarning)
        results = drive_cat(run)
    for result, wanted in zip(results, drive_cat(grown_by_cat), strict=True):
        torch.testing.assert_close(result, wanted)
    handle = handle_of(run)
    assert handle is not None
    assert len(handle.dispatcher.entries) == 2
    assert handle.given_up is None


class Cached(torch.nn.Module):
    """A decoder layer whose key-value cache grows with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        made = self.linear(x)
        made = made if cache is None else torch.cat([cache, made])
        return x + made.softmax(0).sum(0, keepdim=True), made


class Decoder(torch.nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Cached() for _ in range(3))
        self.broken = broken

    def forward(self, x: Tensor, caches: list[Tensor | None], at: int) -> tuple[Tensor, list[Any]]:
        x, made = x + self.place(at), []
        for layer, cache in zip(self.layers, caches, strict=True):
            if self.broken:
                jitmagic.graph_break()
            x, cache = layer(x, cache)
            made.append(cache)
        return x, made

    def place(self, at: int) -> Any:
        return float(f"{at}")  # of a text each call is another

    @torch.no_grad()
    def generate(self, x: Tensor) -> Tensor:
        caches: list[Any] = [None] * 3
        for at in range(40):
            x, caches = self(x, caches, at)
        return x


@pytest.mark.parametrize(
    ("tagged", "broken"), [("forward", False), ("forward", True), ("generate", True)]
)
def test_a_decoder_with_a_growing_cache_stops_compiling(tagged: str, broken: bool) -> None:
    torch.manual_seed(0)
    decoder = Decoder(broken).eval()
    x = torch.randn(1, 4)
    wanted = decoder.generate(x)
    run = jitmagic.jit(getattr(decoder, tagged), backend="eager")
    handle = handle_of(run)
    assert handle is not None
    setattr(decoder, tagged, run)
    with pytest.warns(jitmagic.RecompileWarning, match="grows by one") as caught:
        torch.testing.assert_close(decoder.generate(x), wanted)
    assert len(caught) == 1
    compiled = [record.name for record in handle.journal]
    for _ in range(2):
        torch.testing.assert_close(decoder.generate(x), wanted)
    more = [record.name for record in list(handle.journal)[len(compiled) :]]
    assert set(more) <= {"place"}  # whose limit has nothing to do with the cache


class Placing(Decoder):
    def place(self, at: int) -> Tensor:
        return torch.arange(at, at + 1)


def test_a_decoder_whose_position_is_a_size_is_compiled() -> None:
    torch.manual_seed(0)
    decoder = Placing(broken=False).eval()
    x = torch.randn(1, 4)
    wanted = decoder.generate(x)
    decoder.forward = run = jitmagic.jit(decoder.forward, backend="eager")  # type: ignore[method-assign]
    for _ in range(2):
        torch.testing.assert_close(decoder.generate(x), wanted)
    handle = handle_of(run)
    assert handle is not None
    # without a cache, with one row in it, with more
    assert (len(handle.journal), handle.outcome, handle.given_up) == (3, COMPILED, None)


def at_index(x: Tensor, index: int) -> Tensor:
    return x + float(f"{index}")


def test_an_ever_growing_int_is_detected() -> None:
    run = jitmagic.jit(at_index, backend="eager")
    with pytest.warns(jitmagic.RecompileWarning, match="index is 34, was 1 and grows by one"):
        results = [run(X, index) for index in range(50)]
    torch.testing.assert_close(results, [at_index(X, index) for index in range(50)])
    handle = handle_of(run)
    assert handle is not None
    assert (len(handle.journal), type(handle.outcome)) == (2, Eager)


def test_a_loop_index_is_compiled_when_the_loop_restarts() -> None:
    run = jitmagic.jit(at_index, backend="eager")
    for _ in range(3):
        for index in range(6):
            torch.testing.assert_close(run(X, index), at_index(X, index))
    handle = handle_of(run)
    assert handle is not None
    assert len(handle.dispatcher.entries) == 6
    assert handle.outcome == COMPILED


@pytest.mark.parametrize("sizes", [(2, 4, 8, 16), (3, 4, 4, 5), (5, 4, 3, 2), (3, 4, 3, 4, 5)])
def test_sizes_that_do_not_grow_get_variants(sizes: tuple[int, ...]) -> None:
    for dynamic, wanted in ((False, len(set(sizes))), (None, 2)):
        run = jitmagic.jit(plain, dynamic=dynamic)
        for n in sizes:
            run(torch.zeros(n))
        handle = handle_of(run)
        assert handle is not None
        assert handle.outcome == COMPILED
        assert len(handle.dispatcher.entries) == wanted


def test_messages_name_the_users_function_and_line_not_a_librarys() -> None:
    script = """
        import sys, types, warnings, torch, jitmagic
        code = compile("def wrapper(x, c): return torch.cat([c, x])", LIBRARY, "exec")
        space = {"torch": torch, "__name__": "lib"}
        exec(code, space)
        run = jitmagic.jit(space["wrapper"], dynamic=False)
        def mine(c):
            for _ in range(6):
                c = run(torch.ones(1), c)
        warnings.simplefilter("always")
        with warnings.catch_warnings(record=True) as caught:
            mine(torch.ones(1))
        print(caught[0].message, caught[0].lineno)
    """
    library = "import sysconfig; LIBRARY = sysconfig.get_paths()['purelib'] + '/lib/wrap.py'\n"
    text = "\n".join(line[8:] for line in script.splitlines())
    out = run_forked(library + text)
    assert "wrapper, called in mine (line " in out.stdout, out.stderr
