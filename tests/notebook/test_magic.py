"""%%compile in an IPython shell, and the notebook through a real kernel."""

from __future__ import annotations

import gc
import os
import random
import re
import textwrap
import weakref

import pytest
import torch

pytest.importorskip("IPython")
from IPython.core.error import UsageError

import jitmagic
from jitmagic.api import handle_of
from jitmagic.notebook import magics
from tests.processes import ROOT

from .kernels import execute


def test_functions_are_tagged_and_the_value_is_the_cells(loaded):
    loaded.run_cell("import torch, jitmagic")
    cell = "def f(x):\n    return x * 2 + 1\nf(torch.ones(3))"
    result = loaded.run_cell_magic("compile", "", cell)
    assert torch.equal(result, torch.full((3,), 3.0))
    assert loaded.user_ns["f"].__wrapped__ is not None


def test_top_level_code_writes_the_notebooks_names(loaded):
    loaded.run_cell("import torch")
    loaded.user_ns["x"] = torch.arange(4.0)
    loaded.run_cell_magic("compile", "", "y = x * 2\nz = y.sum()")
    assert torch.equal(loaded.user_ns["y"], torch.arange(4.0) * 2)
    assert loaded.user_ns["z"].item() == 12


@pytest.mark.parametrize("line", ["--mode fast", "--backend nope", "--frobnicate", '--mode "'])
def test_bad_options_are_usage_errors_and_run_nothing(loaded, line):
    with pytest.raises(UsageError):
        loaded.run_cell_magic("compile", line, "touched = 1")
    assert "touched" not in loaded.user_ns


def test_a_backend_can_be_a_name_of_the_notebook(loaded):
    seen = []

    def backend(gm, inputs):
        seen.append(len(inputs))
        return gm.forward

    loaded.user_ns.update(backend=backend, torch=torch)
    loaded.user_ns["x"] = torch.ones(2)
    loaded.run_cell_magic("compile", "--backend backend", "def f(x):\n    return x + 1\nf(x)")
    assert seen == [1]


def test_generators_and_coroutines_are_tagged(loaded, capsys):
    loaded.user_ns["torch"] = torch
    cell = """
    def items(x):
        for k in range(3):
            yield x * k
    async def waits(x):
        return sum(items(x)) + x.sin()
    import asyncio
    v = [one.item() for one in items(torch.ones(()))]
    w = asyncio.run(waits(torch.zeros(())))
    """
    loaded.run_cell_magic("compile", "", textwrap.dedent(cell))
    assert loaded.user_ns["v"] == [0, 1, 2]
    assert loaded.user_ns["w"] == 0
    assert handle_of(loaded.user_ns["waits"]).journal.records
    assert "compiled items" in capsys.readouterr().out  # as part of the cell


def test_explain_and_time_are_displayed(loaded, capsys):
    loaded.user_ns["torch"] = torch
    cell = "def f(x):\n    return x * 2\nf(torch.ones(2))"
    loaded.run_cell_magic("compile", "--explain --time", cell)
    text = capsys.readouterr().out
    assert "this cell is not measured yet" in text  # f is inlined into the cell
    assert "compiling" in text


def test_unloading_restores_everything(shell):
    shell.run_line_magic("load_ext", "jitmagic")
    shell.user_ns["torch"] = torch
    shell.run_cell_magic("compile", "", "def f(x):\n    return x * 2\n")
    tagged = shell.user_ns["f"]
    shell.run_line_magic("unload_ext", "jitmagic")
    assert shell.user_ns["f"] is not tagged
    assert not hasattr(shell.user_ns["f"], "__wrapped__")
    assert "compile" not in shell.magics_manager.magics["cell"]


def test_quickstart_runs_in_a_real_kernel():
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(ROOT / "demos" / "quickstart.ipynb", as_version=4)
    execute(notebook, ROOT / "demos", fresh=True)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    html = [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    assert any("graph break" in text for text in html)
    assert not [o for o in outputs if o["output_type"] == "error"]


def test_unloading_restores_methods_and_module_classes(shell):
    shell.run_line_magic("load_ext", "jitmagic")
    shell.user_ns["torch"] = torch
    plain = "class P:\n    def work(self, x):\n        return x * 2\n"
    module = "class M(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    shell.run_cell_magic("compile", "", plain + module)
    owners = [(shell.user_ns["P"], "work"), (shell.user_ns["M"], "forward")]
    assert all(hasattr(getattr(cls, name), "__wrapped__") for cls, name in owners)
    shell.run_line_magic("unload_ext", "jitmagic")
    assert not any(hasattr(getattr(cls, name), "__wrapped__") for cls, name in owners)
    assert shell.input_transformers_post == []


def test_what_the_user_tagged_keeps_the_users_options(loaded):
    loaded.user_ns["jitmagic"] = jitmagic
    cell = "@jitmagic.jit(mode='max-autotune')\ndef f(x):\n    return x\n"
    loaded.run_cell_magic("compile", "", cell)
    assert handle_of(loaded.user_ns["f"]).options.mode == "max-autotune"


def test_what_a_cell_tagged_is_not_kept_alive(loaded):
    loaded.run_cell_magic("compile", "", "def f(x):\n    return x\n")
    gone = weakref.ref(loaded.user_ns.pop("f"))
    gc.collect()
    assert gone() is None


def shown(loaded, capsys, line, cell):
    capsys.readouterr()
    loaded.run_cell_magic("compile", line, cell)
    return capsys.readouterr().out


def test_one_line_says_what_a_cell_compiled(loaded, capsys):
    loaded.run_cell("import torch")
    cell = "def step(x):\n    return x * 2 + 1\ny = [step(torch.ones(n)) for n in (3, 4)]"
    out = shown(loaded, capsys, "", cell)
    assert out.startswith("compiled step as part of this cell in")
    assert out.endswith(": 1 graph, 2 kernels\n")
    assert out.count("\n") == 1
    assert shown(loaded, capsys, "--quiet", cell) == ""
    assert shown(loaded, capsys, "", "def unused(x):\n    return x") == ""


@pytest.mark.usefixtures("calls_are_compared")
def test_functions_called_in_a_loop_of_a_cell_are_measured(loaded, capsys, monkeypatch):
    # With a GPU, a frame that ends with a break is not timed: the rest of it may use the GPU.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    loaded.run_cell("import torch\nx = torch.ones(64)")
    cell = "def f(x):\n    y = x.sin()\n    print('in between')\n    return y + 1\n"
    shown(loaded, capsys, "", f"{cell}for _ in range(40):\n    f(x)")
    handle = handle_of(loaded.user_ns["f"])
    outcomes = {entry.comparison for entry in handle.dispatcher.entries}
    assert handle.journal.records[0].measured is not None, outcomes


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("--fullgrap", "--fullgraph"),
        ("--explian", "--explain"),
        ("--mode reduce-overhed", "reduce-overhead"),
        ("--mode fast", "default"),
    ],
)
def test_a_wrong_option_or_value_is_answered_with_the_nearest(loaded, line, meant):
    with pytest.raises(UsageError, match=rf"\(did you mean {meant}\?\)"):
        loaded.run_cell_magic("compile", line, "1")


def test_names_are_tagged_and_untagged_by_line_magics(loaded, capsys):
    loaded.run_cell("import torch\ndef f(x):\n    return x * 2\nm = torch.nn.Linear(3, 3)")
    plain = loaded.user_ns["f"]
    card, other = loaded.run_line_magic("compile", "--backend eager f m").cards
    assert (card.name, card.state, other.name) == (
        "f",
        "not called yet",
        "Linear.forward",
    )
    assert loaded.user_ns["f"] is not plain
    loaded.run_cell("y = f(torch.ones(3))")
    [card] = loaded.run_line_magic("compile_status", "f").cards
    assert (card.calls, card.state) == (1, "compiled")
    assert len(loaded.run_line_magic("compile_status", "").cards) >= 2
    loaded.run_line_magic("compile_off", "f m")
    assert loaded.user_ns["f"] is plain
    assert handle_of(loaded.user_ns["m"]) is None


def test_unknown_name_suggests_the_nearest(loaded):
    loaded.run_cell("def forward(x):\n    return x")
    with pytest.raises(UsageError, match="did you mean forward"):
        loaded.run_line_magic("compile", "foward")


def test_tagged_functions_show_cards_and_others_do_not(loaded, monkeypatch):
    loaded.run_cell("import torch, jitmagic\ndef f(x):\n    return x * 2\ng = jitmagic.jit(f)")
    loaded.run_cell("m = jitmagic.jit(torch.nn.Linear(2, 2))")
    loaded.run_cell("class Own(torch.nn.Module):\n    def _repr_html_(self):\n        return '<b>'")

    formatter = loaded.display_formatter.formatters["text/html"]
    monkeypatch.setattr(formatter, "enabled", True)  # a terminal's is not

    def html(expression):
        return formatter(eval(expression, loaded.user_ns))

    assert html("f") is None and html("torch.nn.Linear(2, 2)") is None
    assert html("Own()") == "<b>"
    assert "<b>f</b>: not called yet" in html("g")
    assert "Linear(in_features=2" in html("m") and "<b>Linear.forward</b>: not called yet" in html(
        "m"
    )
    loaded.run_line_magic("unload_ext", "jitmagic")
    assert "<b>f</b>: not called yet" in html("g"), "its own, which needs no extension"
    assert html("m") is None


def test_timeit_runs_both_sides_and_leaves_everything_as_it_was(loaded):
    loaded.run_cell(
        "import torch, jitmagic\n"
        "def f(x):\n    seen.append(torch.compiler.is_compiling())\n    return x * 2\n"
        "seen = []\ng = jitmagic.jit(f, backend='eager')\n"
        "m = jitmagic.jit(torch.nn.Linear(3, 3), backend='eager')\nx = torch.ones(2, 3)"
    )
    g, m = loaded.user_ns["g"], loaded.user_ns["m"]
    found = loaded.run_line_magic("jit_timeit", "--seconds 0.01 --vs 'torch.ones(3)' m(g(x))")
    assert [side.name for side in found.sides] == ["compiled", "eager", "torch.ones(3)"]
    assert len(found.verdicts) == 2 and found.compiling > 0
    assert loaded.user_ns["g"] is g and handle_of(m) is not None
    hits = handle_of(m).dispatcher.entries[0].hits
    assert 0 < hits < len(loaded.user_ns["seen"]), "eager's calls are not the dispatcher's"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "EXPRESSION"),
        ("--second 1 f(x)", "did you mean --seconds"),
        ("--seconds soon f(x)", "invalid float value: 'soon'"),
        ("f(x", "is not an expression"),
    ],
)
def test_timeit_refuses_what_it_cannot_read(loaded, line, message):
    with pytest.raises(UsageError, match=message):
        loaded.run_line_magic("jit_timeit", line)


ANNOTATED = """\
def f(x):
    y = x @ x
    return (y * 2).relu()


def main(x):
    z = f(x)
    return z + 1


w = main(torch.ones(32, 32))
"""


def test_annotate_shows_what_the_cells_lines_cost(loaded, monkeypatch):
    shown = []
    monkeypatch.setattr(magics, "display", shown.append)
    loaded.run_cell("import torch")
    loaded.run_cell_magic("compile", "--annotate --quiet", ANNOTATED)
    pages = [found._repr_html_() for found in shown]
    row = re.compile("z = f\\(x\\)</span>.*<i style=")
    assert any(row.search(page) for page in pages)
    assert all(found.costs or found.costs.notes or not found.kernels for found in shown)


@pytest.mark.parametrize(("backend", "told"), [("eager", "by backend eager"), ("native", "kernel")])
def test_the_line_says_who_compiled(loaded, capsys, backend, told):
    loaded.run_cell("import torch")
    cell = "def f(x):\n    return x * 2\nv = f(torch.ones(2))"
    loaded.run_cell_magic("compile", f"--backend {backend}", cell)
    text = capsys.readouterr().out
    assert told in text
    assert "0 kernels" not in text


def test_what_takes_longer_than_a_second_runs_as_eager_meanwhile(loaded, capsys, monkeypatch):
    monkeypatch.setattr(magics, "PATIENCE", 0.0)
    loaded.run_cell("import torch, jitmagic\nx = torch.ones(2)")
    number = random.Random(os.urandom(8)).randrange(2, 2**24)  # nobody has built its kernels
    cell = f"def f(x):\n    return x * {number}\nf(x).sum().item()"
    assert loaded.run_cell_magic("compile", "", cell) == 2.0 * number
    assert "runs as plain Python until its kernels are built" in capsys.readouterr().out
    assert jitmagic.wait(300)
    loaded.run_cell("f(torch.ones(2))")
    assert handle_of(loaded.user_ns["f"]).ledger.is_compiled


def test_a_cells_function_is_asked_by_its_attributes_in_a_kernel():
    nbformat = pytest.importorskip("nbformat")
    cells = [
        "import torch, jitmagic\n%load_ext jitmagic\nx = torch.ones(3)",
        "%%compile --quiet\ndef step(x):\n    return x * 2 + 1\ny = step(x)",
        "step.why(x.double())",
        "step.lower(x).compile().memory().outputs",
        "bool(step.test(x, n=4))",
        "jitmagic.explain(step)(x); len([c for c in jitmagic.status().cards if c.name == 'step'])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    execute(notebook)
    shown = [cell.outputs[-1]["data"]["text/plain"] for cell in notebook.cells[2:]]
    assert shown[0].startswith("step ")
    assert shown[1:] == ["12", "True", "1"]
