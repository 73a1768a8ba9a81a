"""The page of explain: one verdict in every view, chips, code, modules, kernels, facts, edits."""

from __future__ import annotations

import io
import re
import sysconfig
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.diagnostics.explanation.explain import Explanation, explanation_of
from jitmagic.diagnostics.explanation.page import page_of
from jitmagic.diagnostics.explanation.page_model import badge
from jitmagic.diagnostics.status import card_of, compile_totals
from jitmagic.diagnostics.words import line_numbers
from jitmagic.errors import UserLine
from jitmagic.figures import speed
from jitmagic.notebook.display import CellPart
from jitmagic.records import Measured

from .test_static_views import Sanitized


def step(x: Tensor) -> Tensor:
    y = torch.tanh(x) * x + 1
    return y.softmax(-1).sum()


def chooses(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y.sin()


def returns(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def both(x: Tensor) -> Tensor:
    if x.sum() > 0:
        sign = x * 1
    else:
        sign = -x
    return sign + 1


def measured(compiled: float, eager: float, fn: Any = step, outside: float | None = None) -> Any:
    """Return a tagged function whose calls took these times."""
    tagged = jitmagic.jit(fn)
    tagged(torch.ones(4, 4))
    journal = handle_of(tagged).journal
    took = Measured(compiled, eager, 20, outside)
    journal.amend(journal.records[0], took, journal.records[0].outcome)
    return tagged


def text_of(html: str) -> str:
    """Return the visible text, with runs of spaces as one."""
    return " ".join(Sanitized(html).text.split())


def in_rich(found: Explanation) -> str:
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(found)
    return out.getvalue()


# -- one speed, one word ---------------------------------------------------------------------------

SPEEDS = {
    "3.1x faster than eager": (0.41e-3, 1.27e-3),
    "42x faster than eager": (1.0, 42.0),
    "as fast as eager": (1.0, 1.04),
    "slower": (165e-6, 125e-6),
}


@pytest.mark.parametrize("told", SPEEDS)
def test_one_speed_in_one_word_wherever_it_is_shown(told: str) -> None:
    tagged = measured(*SPEEDS[told])
    handle = handle_of(tagged)
    found, card = jitmagic.explain(tagged)(torch.ones(4, 4)), card_of(handle)
    line = str(CellPart("step", compile_totals(handle), (), "native", False))
    views = [str(found), in_rich(found), str(found.full()), text_of(found._repr_html_())]
    views += [str(card), text_of(card._repr_html_()), line]
    views += [str(jitmagic.status(tagged)), text_of(jitmagic.status(tagged)._repr_html_())]
    for view in views:
        assert told in view
    factors = {factor for view in views for factor in re.findall(r"\b\d[\d.]*x\b", view)}
    assert factors <= {told.partition(" ")[0]}
    assert told == "slower" or not any("slower" in view for view in views)
    assert found.verdict == explanation_of(tagged).verdict == card.verdict


def test_the_first_line_is_the_verdict_with_its_times() -> None:
    first = str(jitmagic.explain(measured(0.41e-3, 1.27e-3)).now).splitlines()[0]
    times = "410 µs instead of 1.27 ms, median of 40 interleaved calls"
    assert first == f"step is 3.1x faster than eager ({times})"


AS_LONG = "torch's own kernels take as long"
BREAK = "1 graph break takes {} of each call"


@pytest.mark.parametrize(
    ("eager", "outside", "share", "told"),
    [
        (3.1e-3, 0.4e-3, "40 %", "3.1x faster than eager ({times}); {cost}"),
        (3.1e-3, 1e-6, "less than 1 %", "3.1x faster than eager ({times}); {cost}"),
        (3.1e-3, None, "", "3.1x faster than eager ({times})"),
        (0.9e-3, 0.4e-3, "40 %", "slower: {times}, because {cost}"),
        (0.9e-3, 0.1e-3, "10 %", f"slower: {{times}}, because {AS_LONG}; {{cost}}"),
    ],
)
def test_the_verdict_says_what_part_of_a_call_graph_breaks_take(
    eager: float, outside: float | None, share: str, told: str
) -> None:
    tagged = measured(1e-3, eager, chooses, outside)
    found, card = jitmagic.explain(tagged).now, card_of(handle_of(tagged))
    assert found is not None
    cost = BREAK.format(share) if share else ""
    first = str(found).splitlines()[0]
    times = handle_of(tagged).journal.records[0].measured.times
    assert first == f"chooses is {told.format(times=times, cost=cost)}"
    views = [text_of(found._repr_html_()), in_rich(found), str(card), str(jitmagic.status(tagged))]
    assert all(cost in view if cost else "of each call" not in view for view in views)


def test_a_function_without_breaks_has_no_cost_of_them() -> None:
    assert "each call" not in str(jitmagic.explain(measured(1e-3, 3e-3, step, 0.4e-3)).now.full())


def test_a_slow_function_says_why() -> None:
    broken = measured(165e-6, 125e-6, chooses)
    because = "165 µs instead of 125 µs, median of 40 interleaved calls, because 1 graph break"
    first = str(jitmagic.explain(broken).now).splitlines()[0]
    assert first == f"chooses is slower: {because} copies results back to Python"
    short = str(jitmagic.explain(measured(16e-6, 12e-6)).now).splitlines()[0]
    assert "its calls are so short" in short


def test_nothing_that_ran_once_on_made_up_tensors_is_a_speed() -> None:
    found = jitmagic.explain(step)(torch.ones(4, 4))
    assert found.costs and found.measured is None
    first = str(found).splitlines()[0]
    assert first == "step is not measured yet: call it a few times or use %jit_timeit"
    for view in (str(found), str(found.full()), text_of(found._repr_html_()), in_rich(found)):
        assert not re.search(r"\dx (faster|slower|as fast)", view)


@pytest.mark.parametrize(
    ("ours", "rival", "told"),
    [(1.0, 9.96, "10x faster"), (1.0, 2.0, "2.0x faster"), (3.0, 2.0, "1.5x slower")]
    + [(1.0, 1.0, "as fast as"), (0.0, 1.0, "as fast as"), (1.05, 1.0, "1.1x slower")],
)
def test_speeds_have_two_digits(ours: float, rival: float, told: str) -> None:
    assert speed(ours, rival).startswith(told)


def test_the_speed_is_that_of_the_variant_most_calls_run() -> None:
    tagged = jitmagic.jit(step, dynamic=False)
    for size, calls in ((3, 1), (4, 5), (5, 2)):
        for _ in range(calls):
            tagged(torch.ones(size, size))
    journal = handle_of(tagged).journal
    for number, record in enumerate(list(journal.records), 2):
        journal.amend(record, Measured(1.0, float(number), 4), record.outcome)
    assert explanation_of(tagged).verdict.speed == "3.0x faster than eager"


# -- breaks inside of a library --------------------------------------------------------------------

LIBRARY: dict[str, Any] = {}
LIBRARY_TEXT = """def inner(x):
    print("inner")
    return x + 1

def outer(x):
    print("outer")
    return x * 3
"""
exec(compile(LIBRARY_TEXT, f"{sysconfig.get_paths()['purelib']}/somelib/parts.py", "exec"), LIBRARY)
inner, outer = LIBRARY["inner"], LIBRARY["outer"]


def calls_library(x: Tensor) -> Tensor:
    y = x * 2
    y = outer(inner(y))
    return y.sin()


def test_breaks_in_a_library_are_on_the_users_line(capsys: pytest.CaptureFixture[str]) -> None:
    jitmagic.jit(calls_library, options={"notices": "always"})(torch.ones(3))
    line = calls_library.__code__.co_firstlineno + 2
    told = capsys.readouterr().err
    assert f"line {line}, in calls_library: `y = outer(inner(y))` in somelib, print() wri" in told
    found = jitmagic.explain(calls_library)(torch.ones(3))
    capsys.readouterr()
    assert {(b.where.lineno, b.library, b.edit) for b in found.break_reasons} == {
        (line, "somelib", ())
    }
    assert len(found.break_reasons) == found.graph_break_count == 2
    page = page_of(found)
    assert page.chips[0].text.endswith("1 break")
    (broken,) = (row for row in page.codes[0].rows if row.breaks)
    (told_once,) = broken.breaks
    told = "in somelib (parts.py, line 2): print() writes output; and 1 more place there"
    assert (broken.number, told_once.reason) == (line, told)
    assert told in str(found)
    assert told in text_of(found._repr_html_())


# -- chips, text, kernels --------------------------------------------------------------------------


def test_four_chips_tell_graphs_memory_compile_time_and_payback() -> None:
    found = jitmagic.explain(measured(1e-3, 2.0))(torch.ones(4, 4))
    chips = [chip.text for chip in page_of(found).chips]
    assert chips[0] == "1 graph, no breaks"
    assert re.fullmatch(r"[\d.]+ B (instead of [\d.]+ B|, as eager)", chips[1])
    assert re.fullmatch(r"compiled in [\d.]+ m?s( \(\d kernels? from disk\))?", chips[2])
    assert chips[3] in ("pays back after 1 call", "paid back after 1 call")
    assert str(found).splitlines()[1] == " · ".join(chips)
    assert all(chip in text_of(found._repr_html_()) for chip in chips)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 16), nn.GELU())
        self.out = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.inner(self.norm(x)))


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any) -> Any:
        return fn(self, *args)

    return wrapper


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(8, 2)

    @wrapped
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_a_model_is_a_tree_of_modules_with_alike_layers_once() -> None:
    found = jitmagic.explain(Model().requires_grad_(False))(torch.randn(4, 8))
    (root,) = page_of(found).modules
    shown = [(depth, module.title, module.kind) for depth, module in root.walk()]
    assert shown == [
        (0, "Model", ""),
        (1, "blocks (x3, alike)", "Block"),
        (2, "norm", "LayerNorm"),
        (2, "inner", ""),
        (3, "0", "Linear"),
        (3, "1", "GELU"),
        (2, "out", "Linear"),
        (1, "head", "Linear"),
    ]
    blocks, head = root.inside
    assert root.compiled == pytest.approx(blocks.compiled + head.compiled)
    assert root.compiled == pytest.approx(found.costs.compiled, rel=0.05)
    assert "wrapper" not in [name for _, name, _ in shown]
    (code,) = blocks.codes
    assert any("self.out(self.inner" in row.text for row in code.rows)
    assert "blocks (x3, alike)" in str(found)
    assert len(str(found).splitlines()) <= 25


def test_package_wrappers_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model().requires_grad_(False)
    codes = page_of(jitmagic.explain(model)(torch.randn(4, 8))).codes
    assert "return fn(self, *args)" in [row.text.strip() for row in codes[0].rows]  # the user's
    monkeypatch.setattr(
        "jitmagic.diagnostics.explanation.gutter.is_library_file", lambda filename: True
    )
    page = page_of(jitmagic.explain(model)(torch.randn(4, 8)))
    assert [(code.name, code.is_open) for code in page.codes] == [("Model.forward", True)]
    (root,) = page.modules
    assert root.codes == () and [code.name for code in root.inside[0].codes] == ["Block.forward"]


def test_layers_that_differ_are_branches_of_their_own() -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).requires_grad_(False)
    found = jitmagic.explain(layers)(torch.randn(2, 8))
    (root,) = page_of(found).modules
    assert [each.kind for each in root.inside] == ["Linear", "ReLU", "Linear"]
    one = jitmagic.explain(nn.Linear(8, 8))(torch.randn(2, 8))
    assert page_of(one).modules == ()


def test_kernels_say_in_the_users_words_what_they_compute() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (512,)) + w

    found = jitmagic.explain(program)(torch.randn(256, 512), torch.randn(512))
    (bar,) = page_of(found).kernels
    assert bar.title == "layer norm, add"
    assert bar.kernel.nbytes == pytest.approx(2 * 256 * 512 * 4, rel=0.1)
    assert bar.limit.endswith("% of memory speed") or bar.limit == "limited by arithmetic"


def test_badges_join_lines_and_kernels() -> None:
    page = page_of(jitmagic.explain(step)(torch.randn(64, 64)))
    numbers = {bar.number for bar in page.kernels}
    assert numbers == set(range(1, len(page.kernels) + 1))
    rows = page.codes[0].rows
    assert {n for row in rows for n in row.badges} == numbers
    assert not any(name in row.text for row in rows for bar in page.kernels
                   for name in [bar.kernel.name])  # fmt: skip
    assert [badge(n) for n in (1, 20, 21, 36)] == ["①", "⑳", "㉑", "(36)"]


def test_a_refused_fusion_names_the_bytes_that_it_would_have_saved() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(x, -1) @ w

    found = jitmagic.explain(program)(torch.randn(16, 16), torch.randn(16, 16))
    (told,) = page_of(found).refused
    assert told.startswith("softmax and matrix product in one kernel would save 2 KiB: not done, ")
    assert told in unescape(text_of(found._repr_html_()))


# -- training, breaks, facts -----------------------------------------------------------------------


def test_a_training_step_has_line_times_and_memory() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    tagged = jitmagic.jit(train)
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    for _ in range(2):
        tagged(x, y)
    found = jitmagic.explain(tagged)(x, y)
    assert not found.costs.notes
    rows = {row.text.strip(): row for row in page_of(found).codes[0].rows}
    loss = rows["loss = nn.functional.cross_entropy(model(x), y)"]
    assert loss.eager > 0 < loss.compiled
    assert found.memory[0] > 0 < found.memory[1]
    (footprint,) = found.footprints
    assert not footprint.why_not and "at most" in footprint.peaks
    assert "clip-path:polygon(" in found._repr_html_()


def test_a_loss_that_is_differentiated_outside_has_times_of_its_backward() -> None:
    tagged = jitmagic.jit(step)
    x = torch.randn(4, 4, requires_grad=True)
    tagged(x).backward()
    page = page_of(jitmagic.explain(tagged)(x))
    assert any(bar.title.startswith("backward of ") and bar.seconds for bar in page.kernels)


EDITS = {
    "choice": (chooses, ["- if y.sum() > 0:", "-     y = y + 1",
                         "+ y = torch.where(y.sum() > 0, y + 1, y)"]),
    "return": (returns, ["- if x.sum() > 0:", "-     return x + 1", "- return x - 1",
                         "+ return torch.where(x.sum() > 0, x + 1, x - 1)"]),
    "else": (both, ["- if x.sum() > 0:", "-     sign = x * 1", "- else:", "-     sign = -x",
                    "+ sign = torch.where(x.sum() > 0, x * 1, -x)"]),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_a_break_shows_an_edit_that_removes_it(name: str) -> None:
    fn, edit = EDITS[name]
    found = jitmagic.explain(fn)(torch.ones(3))
    first = found.break_reasons[0]
    assert list(first.edit) == edit
    for line in edit:
        assert line in str(found) and line in unescape(Sanitized(found._repr_html_()).text)
    source = "\n".join(found.source[2])
    gone = [line[2:].strip() for line in edit if line.startswith("-")]
    made = [line[2:] for line in edit if line.startswith("+")]
    kept = [line for line in source.splitlines() if line.strip() not in gone]
    at = next(n for n, line in enumerate(source.splitlines()) if line.strip() == gone[0])
    kept.insert(at, f"    {made[0]}")
    space: dict[str, Any] = {"torch": torch, "Tensor": Tensor}
    exec("\n".join(kept), space)
    edited = space[fn.__name__]
    assert jitmagic.explain(edited)(torch.ones(3)).graph_break_count == 0
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(edited(x), fn(x))


def test_facts_are_what_a_caller_can_change() -> None:
    model = nn.Linear(4, 4)

    def program(x: Tensor, batch: dict[str, Tensor], count: int) -> Tensor:
        return model(x) * batch["scale"] * count if model.training else x

    found = jitmagic.explain(program, dynamic=False)(torch.ones(4), {"scale": torch.ones(4)}, 3)
    assert "x is float32[4] cpu" in found.facts
    assert "batch['scale'] is float32[4] cpu" in found.facts
    assert "count is 3" in found.facts
    assert "model.training is True" in found.facts
    assert any(fact.startswith("parameters and other tensors") and "(2)" in fact
               for fact in found.facts)  # fmt: skip
    assert found.other_facts >= len(found.guards) - len(found.facts) - 2
    assert not any("hooks" in fact or "type(" in fact for fact in found.facts)


def test_last_recompile_shows_the_edit_that_avoids_it() -> None:
    tagged = jitmagic.jit(step, dynamic=False)
    for size in (3, 4):
        tagged(torch.ones(size, size))
    told = str(jitmagic.explain(tagged).now)
    assert "recompiled because x.shape is (4, 4), was (3, 3)" in told
    assert "to stop it: " in told


@pytest.mark.parametrize("fn", [step, chooses, returns, both], ids=lambda fn: fn.__name__)
def test_text_is_short_and_full_text_has_everything(fn: Any) -> None:
    found = jitmagic.explain(fn)(torch.ones(4, 4))
    assert len(str(found).splitlines()) <= 25
    assert max(map(len, str(found).splitlines())) <= 130
    full = str(found.full())
    assert repr(found.full()) == full
    for part in (*found.guards, *found.decisions, *(name for name, _ in found.compile_times)):
        assert part in full


def test_library_code_is_folded_and_the_users_is_open() -> None:
    found = jitmagic.explain(chooses)(torch.ones(3))
    codes = page_of(found).codes
    assert [code.name for code in codes if code.is_open] == ["chooses"]
    page = found._repr_html_()
    assert page.index('<pre class="source"') < page.index('<details class="fold">')


def test_plain_python_is_said_once_without_figures_of_a_compile() -> None:
    def looks(x: Tensor) -> Tensor:
        if x.sum() < 0:
            breakpoint()
        return x * 2

    tagged = jitmagic.jit(looks)
    tagged(torch.ones(3))
    found = jitmagic.explain(tagged).now
    assert found is not None
    assert str(found).count("it inspects its own frame") == 1
    assert [chip.text for chip in page_of(found).chips] == ["0 graphs, no breaks"]


def test_lines_of_other_files_name_the_file_once() -> None:
    places = [("a.py", 3), ("b.py", 9), ("b.py", 12), ("c.py", 1), ("a.py", 4)]
    told = line_numbers([UserLine(file, number) for file, number in places], "a.py")
    assert told == "3, 4, b.py:9, 12, c.py:1"
