"""Requests of a front end to a kernel: completion, locals after an error, a notebook as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import child_environment

from .kernels import execute, kernel_command
from .test_completion import CASES, MODES, OPTIONS

SETUP = (
    "%load_ext jitmagic\nimport torch, jitmagic\n"
    "plain = lambda x: x\ntagged = jitmagic.jit(lambda x: x)"
)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A blocking client of a real kernel that has the extension."""
    manager_of = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    manager = manager_of.KernelManager(kernel_name="python3")
    manager.kernel_spec.argv = kernel_command()
    manager.start_kernel(env=child_environment())
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        assert run(client, SETUP)[0] == "ok"
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(client: Any, code: str, answers: tuple[str, ...] = ()) -> tuple[str, str]:
    """The status of a cell, and what it printed; `answers` go to its prompts."""
    told: list[str] = []
    left = iter(answers)

    def hear(message: Any) -> None:
        content = message["content"]
        told.append(content.get("text", "") or content.get("data", {}).get("text/plain", ""))

    reply = client.execute_interactive(
        code,
        timeout=240,
        allow_stdin=bool(answers),
        output_hook=hear,
        stdin_hook=lambda message: client.input(next(left)),
    )
    return reply["content"]["status"], plain("".join(told))


def plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("line", CASES)
def test_tab_completes_a_magic(client: Any, line: str) -> None:
    found = client.complete(line, reply=True, timeout=60)["content"]
    assert found["status"] == "ok"
    if CASES[line]:
        assert sorted(found["matches"]) == CASES[line]
        word = "" if line.endswith(" ") else line.split()[-1]
        assert line[found["cursor_start"] : found["cursor_end"]] == word


@pytest.mark.parametrize("code", ["x = 1\n", "def f(x):\n    return x\n"])
def test_tab_completes_the_first_line_of_a_cell(client: Any, code: str) -> None:
    """With the cell's body below it."""
    for line, wanted in (("%%compile --", OPTIONS), ("%%compile --mode ", MODES)):
        found = client.complete(f"{line}\n{code}", len(line), reply=True, timeout=60)["content"]
        assert sorted(found["matches"]) == wanted


HELP = {
    "%%com|pile --mode default\nx = 1": ["--mode M", "--quiet"],
    "%%compile --mo|de default\nx = 1": ["--mode M", "--quiet"],
    "%%compile\nprint|(1)": ["Prints the values"],
    "y = 2\n%com|pile plain": ["%compile [--mode M] [--backend B] [--fullgraph] [--dynamic]"],
    "%jit_timeit| plain(1)": ["--seconds S", "--vs"],
    "%jit_cache| clear": ["--older-than AGE", "bundle FILE"],
    "%compile_off plain|": ["%compile_off NAME"],
    "%timeit| 1": ["Time execution of a Python statement"],
    "tag|ged(1)": ["Signature", "tagged(x)"],
    "jitmagic.expl|ain(tagged)": ["with all its side effects"],
}


@pytest.mark.parametrize("code", HELP)
def test_shift_tab_shows_the_help(client: Any, code: str) -> None:
    before, _, after = code.partition("|")
    found = client.inspect(before + after, len(before), reply=True, timeout=60)["content"]
    text = plain(found["data"]["text/plain"])
    assert [word for word in HELP[code] if word not in text] == []


def test_shift_tab_is_unchanged_without_the_extension(client: Any) -> None:
    assert run(client, "%unload_ext jitmagic")[0] == "ok"
    found = client.inspect("%%compile\n", 4, reply=True, timeout=60)["content"]
    assert run(client, "%load_ext jitmagic")[0] == "ok"
    assert "--mode" not in plain(found["data"]["text/plain"])


ERRORS = {
    "operation": "def f(x):\n    kept = x * 2\n    return kept @ torch.ones(7, 7)",
    "index": "def f(x):\n    kept = x * 2\n    return kept[torch.tensor([9])] + 1",
    "raise": "def f(x):\n    kept = x * 2\n    raise ValueError('of the user')",
    "after a graph break": (
        "def f(x):\n    kept = x * 2\n    jitmagic.graph_break()\n    raise ValueError"
    ),
    "inlined": (
        "def inner(x):\n    kept = x * 2\n    raise KeyError(3)\ndef f(x):\n    return inner(x) + 1"
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_debug_has_the_locals_or_a_line_says_how(client: Any, kind: str) -> None:
    """After %compile_off, the frame that raised has the locals, on the user's line."""
    assert run(client, f"%%compile\n{ERRORS[kind]}")[0] == "ok"
    call, look = "f(torch.full((3, 3), 21.0))", ("p kept.shape, float(kept.max())", "w", "q")
    for _ in range(3):
        status, told = run(client, call)  # which may hold the line of a compile that takes long
        assert (status, "locals" in told) == ("error", False)
        told = run(client, "%debug", look)[1]
        assert ERRORS[kind].splitlines()[-1 if kind != "inlined" else 2].strip() in told
        has_locals = "(torch.Size([3, 3]), 42.0)" in told
        # Where f is timed as plain Python, its callee is the compiled one.
        assert has_locals or re.match("jitmagic: (f|inner) ran compiled, which keeps no", told)
    run(client, "%compile_off f" if kind != "inlined" else "%compile_off f inner")
    assert run(client, call)[0] == "error"
    told = run(client, "%debug", look)[1]
    assert "(torch.Size([3, 3]), 42.0)" in told
    assert "keeps no locals" not in told


def test_pdb_hint_is_shown_before_the_cell_runs(client: Any) -> None:
    """Its prompt comes with the traceback, when it is late to say anything."""
    told = [run(client, line)[1] for line in ("%pdb on", "%pdb", "%pdb", "%pdb 0")]
    assert ["keeps no locals" in text for text in told] == [True, False, True, False]


HEADS = {  # of IPython's traceback, which names each frame's parameters
    "cell": (
        "%%compile\ndef f(x):\n    y = x * 2\n    print(1)\n    raise ValueError\nf(x)",
        "f()",
    ),
    "async cell": (
        "%%compile\nimport asyncio\ndef f(x, k=2):\n    y = x * k\n    print(1)\n"
        "    return y @ x.new_ones(k)\nawait asyncio.sleep(0)\nf(x)",
        "f(x, k)",
    ),
    "background": (
        "@jitmagic.jit(options={'background': True})\ndef f(x):\n    print(1)\n"
        "    return (x * 2) @ x.new_ones(7)\nf(x)",
        "f(x)",
    ),
    "loop": (
        "@jitmagic.jit\ndef f(x, *rest):\n    for i in range(3):\n        x = x + 1\n"
        "        print(i)\n        assert i < 1\nf(x, 1)",
        "f(x)",
    ),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_traceback_names_the_users_variables_only(client: Any, kind: str) -> None:
    text, head = HEADS[kind]
    errors: list[str] = []

    def hear(message: Any) -> None:
        errors.extend(message["content"].get("traceback", ()))

    assert run(client, "x = torch.ones(3)")[0] == "ok"
    assert client.execute_interactive(text, timeout=240, output_hook=hear)
    told = plain("\n".join(errors))
    frames = re.findall(r", in (\w+\(.*?\))", told)
    assert frames == [head], told
    for word in (".stack", "jitmagic/", "failed resolving", "%%compile"):
        assert word not in told


def test_a_notebook_as_html_is_readable(tmp_path: Path) -> None:
    """nbconvert: the line of a cell, explain's report, a card, status, and what report says."""
    exporters = pytest.importorskip("nbconvert.exporters")
    nbformat = pytest.importorskip("nbformat")
    cells = (
        SETUP,
        "%%compile --explain --annotate\ndef step(x):\n    y = torch.relu(x) * 2\n"
        "    jitmagic.graph_break()\n    return y + 1\nstep(torch.ones(3))",
        "step",
        "%compile_status",
        f"jitmagic.report({str(tmp_path / 'out')!r})",
        "jitmagic.explain(step)(torch.ones(3)).picture('graph')",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    execute(notebook, tmp_path)
    page, _ = exporters.HTMLExporter(embed_images=True).from_notebook_node(notebook)
    body = page[page.index("<body") :].replace('"', "'")
    heads = "<span class='bar'> eager</span><span class='bar'> compiled</span>"
    for text in ("compiled step in", "graph break", heads, "<b>step</b>: compiled", "capsule",
                 "index.html", "data:image/svg+xml"):  # fmt: skip
        assert text in body, text
    assert "output_error" not in body
    assert body.count("<details") == body.count("</details>") > 0
    (table,) = [out["data"] for out in notebook.cells[3].outputs]
    assert "step: compiled" in table["text/plain"]
    assert "<cell>" not in table["text/plain"]  # whose top level runs once
    assert (tmp_path / "out" / "index.html").exists()
