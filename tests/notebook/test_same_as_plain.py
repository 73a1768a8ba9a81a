"""%%compile leaves what the plain cell leaves: value, names, output, errors on the user's lines."""

from __future__ import annotations

import re

import pytest

from .kernels import execute

SETUP = "import asyncio, gc, torch, jitmagic\n%load_ext jitmagic"
CELLS = [
    "torch.ones(2) + 1;",
    "%time y = torch.ones(2) * 3\ny.sum().item()",
    "exec('q = 3')\nlocals()['w'] = 5\nq + w",
    "try:\n    from math import *\nexcept ImportError:\n    pass\npi",
    "h = lambda v: v * 2\nh",
    "await asyncio.sleep(0)\nout = []\n[k async for k in aiter_of(3)]",
    "class P:\n    def many(self):\n        yield 1\n    def one(self):\n        return 2\n"
    "list(P().many()), P().one()",
    "if True:\n    def inner(q=(n := 4)):\n        return q\ninner(), n",
    "from __future__ import annotations\ndef late(x: Missing): return x\nlate.__annotations__",
    "return 5",
    "x = = 1",
    "yield 1",
    "x = torch.ones(3)\n\nz = x / torch.ones(4)",
    "def f(x):\n    return x @ torch.ones(5)\n\ndef g(x):\n    y = x + 1\n    return f(y)\n\n"
    "g(torch.ones(3))",
    "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('chained') from e",
    "def looks():\n    import sys\n    return sorted(sys._getframe(1).f_locals.keys() & {'a_1'})\n"
    "a_1 = 3\nlooks()",
    "del a_1\nfor i in range(2):\n    x = torch.ones(2) * i\n[looks(), x]",
    "looks()\nx.missing",
]
ASYNC = "async def aiter_of(n):\n    for i in range(n):\n        yield i"


def run_cells(texts: list[str]) -> list:
    nbformat = pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_code_cell(text) for text in texts]
    for cell in cells:
        cell.metadata["tags"] = ["raises-exception"]
    execute(nbformat.v4.new_notebook(cells=cells))
    return cells


def shown(cell, *, compiled: bool) -> list:
    """Values, and of errors the kind, the words, and the user's lines with what stands on them."""
    found = []
    for output in cell.outputs:
        if output.get("data"):  # an emptied display has none
            found.append(re.sub("0x[0-9a-f]+", "", output.data["text/plain"]))
        elif output.output_type == "error":
            text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
            assert "site-packages/jitmagic" not in text and "jitmagic/" not in text
            assert "skipping hidden" not in text and "%%compile" not in text.splitlines()[2:4]
            lines = re.findall(r"^-+> (\d+)(.*)$", text, re.MULTILINE)
            at = [(int(number) - compiled, line) for number, line in lines]
            found.append((output.ename, output.evalue.partition(" (")[0], at))
    return found


def test_values_errors_and_their_lines_are_the_plain_cells():
    plain = run_cells([SETUP, ASYNC, *CELLS])
    compiled = run_cells([SETUP, ASYNC, *(f"%%compile --quiet\n{text}" for text in CELLS)])
    for before, after in zip(plain[2:], compiled[2:], strict=True):
        expected = shown(before, compiled=False)
        assert shown(after, compiled=True) == expected, after.source
        assert len(expected) == (not before.source.endswith(";")), before.source


SHOWS = "a = torch.ones(2)\na + 1\nimport math\nmath.floor(2.5)\nlocals()['a'].sum()\n{}"
MODES = ("all", "last", "last_expr", "none", "last_expr_or_assign")


def test_what_is_shown_is_what_ipython_is_set_to_show():
    cells = [SHOWS.format(end) for end in ("a * 2", "b = a * 3", "def f(x): return x", "a += 1")]
    plain, compiled = [SETUP], [SETUP]
    for mode in MODES:
        setting = f"get_ipython().ast_node_interactivity = {mode!r}"
        plain += [setting, *cells]
        compiled += [setting, *(f"%%compile --quiet\n{text}" for text in cells)]
    wanted = [shown(cell, compiled=False) for cell in run_cells(plain)]
    assert [shown(cell, compiled=True) for cell in run_cells(compiled)] == wanted
    of_modes = [wanted[i : i + len(cells)] for i in range(2, len(wanted), len(cells) + 1)]
    assert [any(found) for found in of_modes] == [mode != "none" for mode in MODES]


def test_a_graph_that_breaks_under_fullgraph_is_shown_on_the_users_line():
    cell = "%%compile --fullgraph\ndef f(x):\n    print(x)\n    return x\nf(torch.ones(2))"
    text = re.sub(
        r"\x1b\[[0-9;]*m", "", "\n".join(run_cells([SETUP, cell])[1].outputs[0].traceback)
    )
    assert "magics.py" not in text
    assert re.search(r"^-+> 3     print\(x\)$", text, re.MULTILINE), text


def test_explain_is_one_display_with_text_and_html():
    cell = "def f(x):\n    return x * 2\njitmagic.explain(f)(torch.ones(2))"
    outputs = [o for o in run_cells([SETUP, cell])[1].outputs if o.get("data")]
    assert [sorted(o.data) for o in outputs] == [["text/html", "text/plain"]]
    assert outputs[0].data["text/plain"].startswith("f is not measured yet")


def test_a_helper_edited_many_times_is_never_stale_and_never_reaches_the_limit():
    cells = [SETUP, "%%compile\ndef f(x):\n    return h(x) * 2"]
    for number in range(12):
        cells += [f"%%compile\ndef h(x):\n    return x + {number}", "f(torch.ones(1)).item()"]
    ran = run_cells(cells)
    values = [o.data["text/plain"] for cell in ran[3::2] for o in cell.outputs if o.get("data")]
    assert values == [str(2.0 * (1 + number)) for number in range(12)]
    assert "RecompileWarning" not in str([cell.outputs for cell in ran])


def test_a_training_loop_at_top_level_that_keeps_its_losses_stays_compiled():
    cell = """%%compile --quiet
w = torch.ones(4, requires_grad=True)
losses = []
for step in range(30):
    loss = ((w * torch.arange(4.0)).sum() - 1) ** 2
    loss.backward()
    with torch.no_grad():
        w -= 0.01 * w.grad
        w.grad = None
    losses.append(loss.item())
len(losses), losses[-1] < losses[0]"""
    ran = run_cells([SETUP, cell])[1]
    (shown,) = [o.data["text/plain"] for o in ran.outputs if o.get("data")]
    assert shown == "(30, True)"
    assert "Warning" not in str(ran.outputs)


def test_a_loop_that_breaks_too_often_says_so_on_its_line_in_its_own_names():
    loop = (
        "for i in [k * k + 5 for k in range(99)]:\n"
        # A key is a constant; Python runs loops that do no tensor work between their breaks.
        "    if i % 10 == 0: print(i)\n    q = torch.ones(2) * {i: 2}[i]\nq"
    )
    cell = f"%%compile\nimport math\n{loop}"
    ran = run_cells([SETUP, cell])[1]
    (told,) = [o.text for o in ran.outputs if o.output_type == "stream" and "Warning" in o.text]
    assert re.search(r"\.py:\d+: RecompileWarning: <cell> from line 3 on, after a graph", told), (
        told
    )
    assert re.search(r"first difference: new i is \d+, was \d+", told), told
    assert "tag what a loop calls" in told and ".stack" not in told
    assert "\n  for i in [k * k + 5 for k in range(99)]:\n" in told
