"""explain(): its counts are what happened, and every view shows the user's own lines."""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.compile import pipeline
from jitmagic.diagnostics.dump import dump
from jitmagic.diagnostics.explanation.explain import Explanation, explanation_of
from jitmagic.errors import FallbackWarning
from jitmagic.runtime.toolchain import header_folder


def whole(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x * y + 2).sum(-1)


def broken(x: Tensor) -> Tensor:
    y = x.sin() * 2
    print("a < b & c")  # <script>alert("x")</script>
    return y.cos() + 1


def calls(x: Tensor) -> Tensor:
    y = helper(x)
    return y + 1


def helper(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x * 3


PRINTS = broken.__code__.co_firstlineno + 2


def ran(fn: Any, *args: Any) -> list[torch.fx.GraphModule]:
    """The graphs that a backend of our own is handed for the same call."""
    seen: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        seen.append(gm)
        return gm.forward

    jitmagic.jit(fn, backend=backend)(*args)
    return seen


def ops(gm: torch.fx.GraphModule) -> int:
    return sum(n.op in ("call_function", "call_method", "call_module") for n in gm.graph.nodes)


@pytest.mark.parametrize(
    ("fn", "args", "breaks"),
    [(whole, (torch.randn(4, 5), torch.randn(4, 5)), 0), (broken, (torch.ones(3),), 1)]
    + [(calls, (torch.ones(3),), 2)],  # the callee's line ends its graph and its caller's
)
def test_counts_agree_with_what_a_backend_sees(fn: Any, args: Any, breaks: int) -> None:
    found, graphs = jitmagic.explain(fn)(*args), ran(fn, *args)
    assert found.graph_break_count == len(found.break_reasons) == breaks
    assert found.graph_count == len(found.graphs) == len(graphs)
    assert found.op_count == sum(map(ops, graphs))


def test_counts_of_kernels_guards_and_times() -> None:
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    found = jitmagic.explain(whole)(x, y)
    (kernel,) = found.kernels
    assert kernel.language == "cpp"
    assert kernel.name in kernel.text
    assert not found.externs
    assert found.guards
    assert found.seconds == pytest.approx(sum(s for _, s in found.compile_times))
    assert {"trace", "lower", "schedule", "render", "load", "emit"} <= {
        n for n, _ in found.compile_times
    }
    assert not found.outcomes


def test_breaks_are_on_the_users_line() -> None:
    (found,) = jitmagic.explain(broken)(torch.ones(3)).break_reasons
    assert (found.where.filename, found.where.lineno) == (__file__, PRINTS)
    assert found.reason
    assert found.hint


def test_breaks_in_a_callee_are_on_the_callees_line() -> None:
    found = jitmagic.explain(calls)(torch.ones(3))
    (reason,) = {(b.where.lineno, b.where.function) for b in found.break_reasons}
    assert reason[0] == helper.__code__.co_firstlineno + 1
    assert str(found).count("if x.sum() > 0:") == 2  # on its line, and where the edit removes it
    assert repr(found) == str(found)


def _rich(found: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(found)
    return out.getvalue()


@pytest.mark.parametrize("view", [str, _rich], ids=["text", "rich"])
def test_text_views_show_the_line_the_break_and_the_edit(view: Any) -> None:
    found = jitmagic.explain(broken)(torch.ones(3))
    text, report = view(found), found.break_reasons[0]
    assert f'{PRINTS}     print("a < b & c")' in text
    assert f"graph break: {report.reason}" in text
    assert "2 graphs, 1 break" in text
    rows = text.splitlines()
    at = next(i for i, row in enumerate(rows) if f'{PRINTS}     print("a < b' in row)
    assert "graph break:" in rows[at + 1]
    assert rows[at + 2].strip() == '- print("a < b & c")'
    assert rows[at + 3].strip() == "+ # call it before or after broken"


class _Parsed(HTMLParser):
    """Tags in order and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_escaped_static_and_well_formed() -> None:
    found = jitmagic.explain(broken)(torch.ones(3))
    html = found._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    parsed = _Parsed(html)
    assert not parsed.open
    assert 'print("a < b & c")  # <script>alert("x")</script>' in parsed.text
    assert f"graph break: {found.break_reasons[0].reason}" in parsed.text
    assert f"hint: {found.break_reasons[0].hint}" in parsed.text
    assert "2 graphs, 1 break" in parsed.text
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)


def test_names_are_escaped_too() -> None:
    html = jitmagic.explain(lambda x: x + 1)(torch.ones(2))._repr_html_()
    assert "&lt;lambda&gt;" in html
    assert "<lambda>" not in html


def test_explain_leaves_the_tagged_function_alone() -> None:
    run = jitmagic.jit(whole, options={"recompile_limit": 3})
    x = torch.randn(3, 4)
    run(x, x)
    before = explanation_of(run)
    jitmagic.explain(run)(torch.randn(5, 6), torch.randn(5, 6))
    assert explanation_of(run) == before
    assert len(handle_of(run).dispatcher.entries) == 1


def test_explain_of_modules_and_of_a_model_in_training() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = jitmagic.explain(module)(torch.randn(3, 4))
    assert (found.graph_count, found.graph_break_count) == (1, 0)
    assert handle_of(module) is None
    assert found.name == "Sequential"


def _html(found: Any) -> str:
    return _Parsed(found._repr_html_()).text


def _full(found: Any) -> str:
    return str(found.full())


VIEWS = pytest.mark.parametrize("view", [_full, _html], ids=["full text", "html"])


@VIEWS
def test_a_model_in_training_lists_its_backward_kernels(view: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    found = jitmagic.explain(model)(torch.randn(3, 4))
    backward = [kernel for kernel in found.kernels if kernel.graph == "backward"]
    assert len(backward) >= 2
    text = view(found)
    assert all(kernel.title in text for kernel in backward)
    assert all(kernel.title.startswith("backward of ") for kernel in backward)
    assert "not compiled yet" not in text
    assert all(parameter.grad is None for parameter in model.parameters())
    assert "def forward(self, input" in text  # the module's own lines, not those of explain


@VIEWS
def test_pending_backward_is_reported(view: Any) -> None:
    run, x = jitmagic.jit(whole), torch.randn(3, 4, requires_grad=True)
    result = run(x, x)
    found = explanation_of(run)
    assert {kernel.graph for kernel in found.kernels} == {"forward"}
    assert "1 backward not compiled yet: that happens at the first use" in view(found)
    result.sum().backward()
    found = explanation_of(run)
    assert {kernel.graph for kernel in found.kernels} == {"forward", "backward"}
    assert "not compiled yet" not in view(found)


def test_no_pending_backward_without_requires_grad() -> None:
    with torch.no_grad():
        found = jitmagic.explain(nn.Linear(4, 2))(torch.randn(3, 4))
    assert not found.waiting
    assert {kernel.graph for kernel in found.kernels} == {"forward"}


@VIEWS
def test_tuning_shows_what_was_tried_and_chosen(view: Any, tmp_path: Path) -> None:
    x = torch.randn(8, 64)
    options = {"cache_dir": str(tmp_path)}
    first = jitmagic.explain(whole, mode="max-autotune", options=options)(x, x)
    again = jitmagic.explain(whole, mode="max-autotune", options=options)(x, x)
    assert [t.outcome for t in first.trials].count("chosen") == 1
    assert [t.measured for t in again.trials] == [False] * len(first.trials)
    assert "tuning" in view(first)
    for trial in first.trials:
        assert f"{trial.seconds * 1e6:.1f} µs" in view(first)
        assert trial.config.split()[0] in view(first)
    assert "earlier" not in view(first)
    assert "earlier" in view(again)


@VIEWS
def test_what_was_not_tuned_says_why(view: Any) -> None:
    pytest.importorskip("numba")
    options = {"cpu_tier": "numba"}
    found = jitmagic.explain(whole, mode="max-autotune", options=options)(*torch.ones(2, 3, 4))
    assert "forward: not tuned: there is nothing to choose for the kernels of numba" in view(found)


def test_generated_matrix_products_are_not_extern_calls() -> None:
    with torch.no_grad():
        small = jitmagic.explain(nn.Linear(4, 2))(torch.randn(3, 4))
        wide = jitmagic.explain(lambda x: torch.sort(x)[0])(torch.eye(3))
    assert (len(small.kernels), small.externs) == (1, ())
    assert len(wide.externs) == 1


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        print("half way")
        return self.last(hidden)


@pytest.mark.parametrize("inner", [False, True])
def test_explain_of_a_tagged_module_shows_what_plain_ones_show(inner: bool) -> None:
    x = torch.randn(3, 4)
    plain, model = jitmagic.explain(Outer())(x), Outer()
    if inner:
        jitmagic.jit(model.inner, backend="eager")
    run = jitmagic.jit(model)
    run(x)
    found = jitmagic.explain(run)(x)
    assert (found.name, found.graph_count, found.graph_break_count) == ("Outer", 2, 1)
    assert [b.kind for b in found.break_reasons] == [b.kind for b in plain.break_reasons]
    assert found.break_reasons[0].where.text == 'print("half way")'
    assert [k.computes for k in found.kernels] == [k.computes for k in plain.kernels]
    assert found.op_count == plain.op_count
    assert "def forward(self, x: Tensor) -> Tensor:" in str(found)
    assert any("x: float32[3, 4]" in guard for guard in found.guards)
    assert handle_of(run).journal.records  # as before: explain has a compile of its own
    assert explanation_of(run).name == "Outer"


def test_explain_of_a_tagged_class_takes_its_instances() -> None:
    tagged = jitmagic.jit(type("Own", (Inner,), {"forward": Inner.forward}), backend="aot_eager")
    found = jitmagic.explain(tagged())(torch.randn(3, 4))
    assert (found.graph_count, found.graph_break_count, found.kernels) == (1, 0, ())
    with pytest.raises(TypeError, match="instance"):
        jitmagic.explain(tagged)
    with pytest.raises(TypeError, match="instance"):
        jitmagic.explain(Inner)
    assert handle_of(Inner) is None


def test_explain_of_a_module_with_hooks() -> None:
    model = jitmagic.jit(Inner())
    seen: list[Any] = []
    model.register_forward_hook(lambda *given: seen.append(given[2].shape))
    found = jitmagic.explain(model)(torch.randn(3, 4))
    assert seen == [(3, 8)]
    assert found.graph_count == 1
    assert [kernel.graph for kernel in found.kernels].count("forward") == 1


def test_the_call_happens_once(capsys: pytest.CaptureFixture[str]) -> None:
    jitmagic.explain(broken)(torch.ones(3))
    assert capsys.readouterr().out == "a < b & c\n"


@VIEWS
def test_numbers_that_are_data_are_named(view: Any) -> None:
    @jitmagic.jit
    def program(x: Tensor, epoch: int, rate: float) -> Tensor:
        return x * epoch * rate + sum(range(epoch))

    for epoch in (3, 4, 5):
        program(torch.ones(3), epoch, epoch / 8)
    told = view(explanation_of(program))
    for line in (
        "epoch: a constant, for the trip count of a loop (range) (",
        "rate: a float, data of the graph",
    ):
        assert line in told


def test_recompiles_add_up() -> None:
    run = jitmagic.jit(whole)
    for n in (2, 3):
        x = torch.randn(n, 4)
        run(x, x)
    assert explanation_of(run).graph_count == 2
    jitmagic.reset()
    assert explanation_of(run).graph_count == 0


def test_what_ran_as_eager_is_said_in_all_views(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(gm: Any, inputs: Any) -> Any:
        raise LookupError("nothing <here>")

    monkeypatch.setattr(pipeline, "trace_joint", broken)
    with pytest.warns(FallbackWarning):
        found = jitmagic.explain(whole)(torch.ones(2, 2), torch.ones(2, 2))
    assert "nothing <here>" in found.outcomes[0][1].why
    assert "nothing <here>" in str(found)
    assert "nothing &lt;here&gt;" in found._repr_html_()


def test_a_function_without_source() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(x):\n    print('out')\n    return x + 1\n", namespace)
    found = jitmagic.explain(namespace["f"])(torch.ones(2))
    assert found.graph_break_count == 1
    for text in (str(found), found._repr_html_()):
        assert found.break_reasons[0].reason.split("(")[0] in text
        assert "line 2" in text


def test_what_was_never_tagged_cannot_be_explained_afterwards() -> None:
    with pytest.raises(TypeError, match="tag it with jitmagic.jit first"):
        explanation_of(whole)


def test_dump_writes_files_that_run(tmp_path: Path) -> None:
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    found = jitmagic.explain(whole)(x, y)
    root = dump(found, tmp_path / "new" / "folder")
    assert (root / "report.txt").read_text() == found.full()
    assert "whole is not measured yet" in (root / "report.txt").read_text()
    assert (root / "report.html").read_text() == found._repr_html_()
    assert len((root / "guards.txt").read_text().splitlines()) == len(found.guards)
    module = _load(root / "graph_0.py")
    torch.testing.assert_close(module.forward(None, x, y)[0], whole(x, y))
    source = root / "kernels_0.cpp"
    command = ["g++", "-std=c++17", "-fsyntax-only", "-march=native", "-w"]
    subprocess.run([*command, f"-I{header_folder()}", str(source)], check=True)


def test_dumped_graphs_of_a_broken_function_run_in_turn(tmp_path: Path) -> None:
    found = jitmagic.explain(broken)(torch.ones(3))
    root = dump(found, tmp_path)
    value = torch.ones(3)
    for number in range(found.graph_count):
        value = _load(root / f"graph_{number}.py").forward(None, value)[0]
    torch.testing.assert_close(value, (torch.ones(3).sin() * 2).cos() + 1)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _update(kind: type[torch.optim.Optimizer], **options: Any) -> Explanation:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = kind([weight], **options)

    def update() -> None:
        optimizer.step()

    return jitmagic.explain(update)()


def test_the_update_of_an_optimizer_is_a_graph() -> None:
    found = _update(torch.optim.Adam)
    assert (found.graph_count, found.graph_break_count) == (1, 0)
    assert "addcdiv_" in found.graphs[0].code and "optimizer.step()" in str(found)


def test_what_runs_as_eager_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(gm: Any, specs: Any) -> Any:
        raise AssertionError("a bug of ours")

    monkeypatch.setattr(pipeline, "trace_joint", broken)
    with pytest.warns(jitmagic.FallbackWarning):
        found = _update(torch.optim.SGD)
    told = " ".join(str(found).split())
    assert found.outcomes and found.graph_count == 0
    for name, outcome in found.outcomes:
        assert re.search(rf"{re.escape(name)} r[ua]ns? as plain Python", told)
        assert "a bug of ours" in outcome.why


def test_explain_without_the_second_call_shows_the_usage() -> None:
    assert "call it with the arguments, explain(f)(x)" in repr(jitmagic.explain(whole))
    assert "explain of Linear:" in repr(jitmagic.explain(nn.Linear(2, 2)))
    with pytest.raises(TypeError, match=r"is written explain\(f\)\(x\)"):
        jitmagic.explain(whole, torch.ones(2))
    with pytest.raises(jitmagic.JitmagicError, match="cannot compile an object of type int"):
        jitmagic.explain(3)


def test_every_view_says_whose_kernels_run() -> None:
    found = jitmagic.explain(lambda x: torch.sort(x)[0] * 2)(torch.eye(3))
    for text in (str(found), _rich(found), _html(found), _full(found)):
        assert "torch's sort" in text
    assert "left to torch: " in _html(found)


def test_the_text_of_a_big_model_has_at_most_25_lines() -> None:
    found = jitmagic.explain(nn.Sequential(*(nn.Linear(2, 2) for _ in range(40))))(torch.ones(1, 2))
    assert len(found.guards) > 80
    assert len(str(found).splitlines()) <= 25
    assert all(guard in _full(found) for guard in found.guards)
    assert found.guards[-1] in unescape(found._repr_html_())


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.usefixtures("calls_are_compared")
def test_the_verdict_is_that_of_the_comparison(keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitmagic.frame.timing.comparison.judge", lambda compiled, eager: keep)
    tagged = jitmagic.jit(whole)
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    for _ in range(8):
        tagged(x, y)
    found = jitmagic.explain(tagged)(x, y)
    assert found.measured is not None and found.measured.calls == 2
    assert found.verdict.details == found.measured.times
    assert "median of 4 interleaved calls" in str(found).splitlines()[0]
    assert ("runs as plain Python from now on" in str(found)) is not keep
    assert found.verdict.tone == "slower" or keep
    assert found.graph_count == 1
    now = explanation_of(tagged)
    assert (now.verdict, now.measured) == (found.verdict, found.measured)
    assert now.graph_count == keep
    assert [name for name, _ in now.outcomes] == ([] if keep else ["whole"])
    apart = jitmagic.explain(whole)(x, y)
    assert apart.measured is None and apart.verdict.tone == "unknown"
