"""Reports in one real kernel: a row for each call, and text that its result contains."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest

from .test_same_as_plain import run_cells


class Row(NamedTuple):
    """A cell, and patterns of what it shows as text and as HTML."""

    cell: str
    text: tuple[str, ...]
    html: tuple[str, ...] = ()


SETUP = """import json, torch, jitmagic
from pathlib import Path
from tempfile import mkdtemp
x, folder = torch.ones(8, 64), Path(mkdtemp())
@jitmagic.jit
def early(x):
    return x + 1"""
STEP = """%load_ext jitmagic
@jitmagic.jit
def step(x, k=2):
    y = torch.relu(x * k)
    jitmagic.graph_break()
    return y.sum(-1)
for given in (x, x, x.double()):
    step(given)"""
ROWS = {
    "card without the extension": Row("early", ("function",), ("<b>early</b>: not called yet",)),
    "set-up": Row(STEP, ()),
    "card": Row("step", ("function",), (r"<b>step</b>: compiled: <span class=\"speed unknown\">"
                                        r"not measured yet</span>, .*2 variants<.*3 calls</",
                                        "<summary>variants</summary>")),
    "explain, no call": Row(
        "jitmagic.explain(step)",
        ("step is not measured yet: call it a few times or use %jit_timeit",
         r"2 variants, 4 graphs, 1 break · at most \d+ \w+ · compiled in", "graph break: ",
         "recompiled because y.dtype is torch.float64, was torch.float32", r"to stop it: "),
        (r"variant 2: compiled in [\d.]+ m?s at \d\d:[^\n]*for the call at Cell In\[3\], line 8",
         "variant 1: x: float32", r"the edit that stops each \(2\)</summary>"),
    ),
    "explain": Row(
        "jitmagic.explain(step)(x)",
        (r"\n    4     y = torch.relu\(x \* k\) +[\d.]+ .?s +[\d.]+ .?s  [①②]", "[①②] mul, relu +",
         r"\d+ \w+(, as eager| instead of \d+ \w+)"),
        ("<span class=\"bar e\"><i style=", "<details class=\"kernel\">", "&#34;C&#34;"),
    ),
    "annotate": Row(
        "%%compile --annotate --quiet\ndef dear(x):\n    return (x.exp() + 1).log()\n_ = dear(x)",
        (r"\n    3     return \(x.exp.* [\d.]+ .?s +[\d.]+ .?s  ①",), ("<span class=\"bar c\"><i",),
    ),
    "why": Row(
        "step.why(x)",
        (r"variant 1 of 2: compiled code, up to the graph break at Cell In\[3\], line 5: jitma",),
    ),
    "why not": Row(
        "jitmagic.why(step)(x, 'a')",
        ("fits none of its 2 variants", "variant 1: k is 'a', was 2", r"needed by Cell In\[3\]"),
    ),
    "passport": Row(
        "p = jitmagic.passport(step)(x.clone().requires_grad_())\np.save(folder / 'p.json')\np",
        ("6 tensors are bitwise equal to eager",
         r"gradient of x of graph 1 +float32 +bitwise equal"),
    ),
    "its file": Row("json.loads((folder / 'p.json').read_text())['agrees']", ("True",)),
    "test": Row("step.test(x, n=8)", (r"step: compiled code agrees with eager \(8 inputs\)",)),
    "timeit": Row(
        "%jit_timeit --seconds 0.1 --vs 'x.sum(-1)' early(x)",
        (r"compiled: [\d.]+ .s per call", "eager: ", r"x.sum\(-1\): ", "compiled before that, in ",
         r"compiled is (as fast as|[\d.]+x (faster|slower) than) eager"),
    ),
    "off": Row("%compile_off early\nearly", ("function",)),
    "on": Row("%compile early", ("early: not called yet",)),
    "status": Row("%compile_status", ("step: compiled: not measured yet, 2 variants",),
                  ("<th>speed</th>",)),
    "cache": Row("%jit_cache", (r"jitmagic cache: [\d,]+ files?, ",), ("<th>last used</th>",)),
    "logs": Row(
        "jitmagic.logs('graph_breaks, recompiles, guards, graph_code, aot_graphs, kernels')\n"
        "early(x)\njitmagic.logs(trace=folder);",
        (r"\[jitmagic.guards\] Cell In\[1\]:7: early: x: float32", "def forward", "kernels]"),
    ),
    "trace": Row(
        "early(x.double())\njitmagic.logs()\n(log,) = folder.glob('*.log')\nprint(log.read_text())",
        ("inductor_output_code", r"guards of early"),
    ),
    "report": Row("jitmagic.report(folder / 'out')", (r"\d functions, \d+ capsules: .*index",)),
    "profiler": Row(
        "with torch.profiler.profile() as prof:\n    early(x)\n"
        "print(sorted({e.name for e in prof.events()}))",
        (r"'early \(Cell In\[1\]:5\)'", "forward of early", r"kernel 0 of early: add \(Cell In\["),
    ),
    "lower": Row(
        "low = early.lower(x)\nprint(*map(low.as_text, ('torch', 'aten', 'loops', 'cpp')))\n"
        "print(low.cost())\nprint(low.compile().memory())\nlow",
        ("x \\+ 1", "aten.add.Tensor", "in points", r'extern "C"', "512 flops, 4 KiB read and",
         "inputs 2 KiB, results and saved tensors 2 KiB"),
        ("<summary>cpp</summary>",),
    ),
    "picture": Row("jitmagic.explain(step).picture('graph')", ("graph by kernel",), ("<img",)),
    "flame": Row("jitmagic.explain(step).picture('compile')", ("compile time: step",)),
    "memory": Row("jitmagic.explain(step).picture('memory')", ("memory over a step: step",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def cells() -> dict[str, Any]:
    return dict(
        zip(ROWS, run_cells([SETUP, *(row.cell for row in ROWS.values())])[1:], strict=True)
    )


@pytest.mark.parametrize("name", ROWS)
def test_a_question_is_answered(cells: dict[str, Any], name: str) -> None:
    outputs = cells[name].outputs
    assert not [output for output in outputs if output.output_type == "error"]
    data = [output.get("data", {}) for output in outputs]
    told = [output.get("text", "") for output in outputs]
    text = "\n".join([*told, *(one.get("text/plain", "") for one in data)])
    html = "\n".join(one.get("text/html", "") for one in data)
    for pattern in ROWS[name].text:
        assert re.search(pattern, text), (pattern, text)
    for pattern in ROWS[name].html:
        assert re.search(pattern, html), (pattern, html[:3000])
