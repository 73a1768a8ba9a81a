"""report(): one folder of all that was compiled; its capsules replay in fresh processes."""

from __future__ import annotations

import json
import linecache
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import jitmagic
from jitmagic.loops import registry
from tests.processes import child_environment, run_forked

from .test_minify import HEAD, NAME, WRONG, Twice, plant, stepped


def replayed(capsule: Path, before: str = "") -> tuple[int, str]:
    """The exit status of replay.py and what it says."""
    script = str(capsule / "replay.py")
    code = f"{before}\nimport runpy\nrunpy.run_path({script!r}, run_name='__main__')\n"
    done = run_forked(code, folder=capsule)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def files_in(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# -- kinds of programs -----------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).softmax(-1)


def inferred(x: Tensor) -> Tensor:
    return torch.relu(x @ x.T) + 1


def trained(x: Tensor) -> Tensor:
    return (torch.tanh(x * 2) * x).sum()


def with_function(x: Tensor) -> Tensor:
    return torch.tanh(Twice.apply(x)) + 1


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda y: torch.tanh(y) * 2, x, use_reentrant=False) + 1


def broken(x: Tensor) -> Tensor:
    y = torch.relu(x) + 1
    jitmagic.graph_break()
    return y * 2


def mutating(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def drawing(x: Tensor) -> Tensor:
    return x + torch.rand(x.shape[0], 6)


def looking_up(table: Tensor, index: Tensor) -> Tensor:
    return torch.nn.functional.embedding(index, table) * 2


def batched(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: torch.tanh(row).sum() * row)(x)


def nothing_recorded(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return torch.mm(x, x.T) * 2


def plain() -> Tensor:
    return torch.randn(4, 6)


def wanting() -> Tensor:
    return torch.randn(4, 6, requires_grad=True)


def once(function: Any, *args: Any) -> Callable[..., Any]:
    def run(**options: Any) -> Any:
        tagged = jitmagic.jit(function, **options)
        result = tagged(*args)
        if isinstance(result, Tensor) and result.requires_grad:
            result.sum().backward()
        return tagged

    return run


def in_sizes(**options: Any) -> Any:
    tagged = jitmagic.jit(lambda x: torch.softmax(x * 2, -1) + 1, **options)
    for rows in (3, 5, 9):
        tagged(torch.randn(rows, 7))
    return tagged


def without_grad(**options: Any) -> Any:
    tagged = jitmagic.jit(trained, **options)
    with torch.no_grad():
        tagged(wanting())
    with torch.inference_mode():
        tagged(plain())
    return tagged


PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "inference": (once(inferred, plain()), 1),
    "training": (once(trained, wanting()), 1),
    "a module": (once(Net(), plain()), 1),
    "autograd.Function": (once(with_function, wanting()), 1),
    "checkpoint": (once(checkpointed, wanting()), 1),
    "a whole step": (once(stepped, wanting()), 1),
    "a graph break": (once(broken, plain()), 2),
    "mutation": (once(mutating, plain()), 1),
    "random numbers": (once(drawing, plain()), 1),
    "indices": (once(looking_up, torch.randn(5, 4), torch.tensor([4, 1])), 1),
    "a transform": (once(batched, plain()), 1),
    "autocast": (once(nothing_recorded, plain()), 1),
    "varying sizes": (in_sizes, 2),
    "no grad": (without_grad, 2),
    "expanded": (once(inferred, torch.randn(1, 6).expand(4, 6)), 1),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_capsules_replay_by_themselves(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, graphs = PROGRAMS[kind]
    made = jitmagic.report(tmp_path / "out", program())
    assert len(made.capsules) == graphs
    for capsule in made.capsules:
        status, told = replayed(capsule)
        assert (status, told.partition(" (")[0]) == (0, "agrees with eager"), told
        facts = json.loads((capsule / "capsule.json").read_text())
        assert facts["not replayable"] == ""
        capsys.readouterr()
        for script in capsule.glob("*_aten.py"):
            runpy.run_path(str(script), run_name="__main__")
            assert capsys.readouterr().out.startswith("result 0: ")


def test_a_replay_imports_no_other_compiler(tmp_path: Path) -> None:
    (capsule,) = jitmagic.report(tmp_path / "out", once(inferred, plain())()).capsules
    rivals = "[name for name in sys.modules if name in ('torch._dynamo', 'torch._inductor')]"
    told = f"import atexit, sys\natexit.register(lambda: print({rivals}))"
    status, text = replayed(capsule, told)
    assert (status, text) == (0, "agrees with eager (1 graph)\n[]\n")


@pytest.mark.parametrize("mode", ["default", "warn", "error"])
def test_a_replay_leaves_determinism_as_it_was(mode: str, tmp_path: Path) -> None:
    torch.set_deterministic_debug_mode(mode)
    try:
        (capsule,) = jitmagic.report(tmp_path / "out", once(inferred, plain())()).capsules
        before = torch.get_deterministic_debug_mode()
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path(str(capsule / "replay.py"), run_name="__main__")
        assert torch.get_deterministic_debug_mode() == before
    finally:
        torch.set_deterministic_debug_mode("default")


@pytest.mark.parametrize("options", [{"backend": "eager"}, {"options": {"fuse": False}}])
@pytest.mark.usefixtures("calls_are_compared")
def test_options_are_those_of_the_compile(options: Any, tmp_path: Path) -> None:
    made = jitmagic.report(tmp_path / "out", once(inferred, plain())(**options))
    (capsule,) = made.capsules
    assert json.loads((capsule / "capsule.json").read_text())["options"] == options
    assert replayed(capsule)[0] == 0


def test_a_wrong_compile_differs(tmp_path: Path) -> None:
    made = jitmagic.report(tmp_path / "out", once(batched, plain())())
    (capsule,) = made.capsules
    status, told = replayed(capsule, WRONG)
    assert status == 1
    assert told.startswith("differs: wrong\n")
    assert "result 0" in told


def test_a_failed_compile_has_a_capsule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = "def broken(*args, **kwargs):\n    raise KeyError('planted')\n"
    crash = f"{HEAD}{crash}assert '{NAME}' in LOWERINGS\nLOWERINGS['{NAME}'] = broken\n"
    plant(crash, monkeypatch)
    assert NAME in registry.LOWERINGS
    tagged = jitmagic.jit(batched)
    with pytest.warns(jitmagic.FallbackWarning):
        tagged(plain())
    capsule, *_ = jitmagic.report(tmp_path / "out", tagged).capsules  # its callee's is another one
    facts = json.loads((capsule / "capsule.json").read_text())
    assert "planted" in facts["traceback"]
    assert replayed(capsule, crash) == (1, "differs: crash: KeyError\n")
    assert replayed(capsule)[0] == 0


@torch.library.custom_op("report_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_what_cannot_be_replayed_says_why(tmp_path: Path) -> None:
    reasons = {
        "the custom operator": jitmagic.jit(lambda x: doubled(x) + 1),
        "a custom backend": jitmagic.jit(lambda x: x + 1, backend=lambda gm, inputs: gm.forward),
    }
    for reason, tagged in reasons.items():
        tagged(plain())
        (capsule,) = jitmagic.report(tmp_path / reason, tagged).capsules
        status, told = replayed(capsule)
        assert status == 2
        assert told.startswith("not replayable: ")
        assert reason in told
    other = tmp_path / "eager"
    (capsule,) = jitmagic.report(other, once(inferred, plain())()).capsules
    script = capsule / "replay.py"
    script.write_text(script.read_text().replace("'cpu'", "'nowhere'"))
    assert replayed(capsule)[1].startswith("not replayable: eager raises RuntimeError: ")


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_generated_code_is_built_by_the_command_beside_it(tmp_path: Path) -> None:
    (capsule,) = jitmagic.report(tmp_path / "out", once(trained, wanting())()).capsules
    commands = json.loads((capsule / "capsule.json").read_text())["build"]
    assert set(commands) == {"forward.cpp", "backward.cpp"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = child_environment(PATH=path, PYTHONPROFILEIMPORTTIME="1")
    for name, command in commands.items():
        done = subprocess.run(
            command,
            shell=True,
            cwd=capsule,
            env=environment,
            check=True,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert (capsule / name).with_suffix(".so").exists()
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "importlib.util" in imported
        assert not {"torch", "jitmagic"} & imported


def test_no_values_are_written(tmp_path: Path) -> None:
    """Neither tensor values nor dynamic numbers are written."""
    tagged = jitmagic.jit(lambda x, factor: x * factor)
    for factor in (1234.5625, 4321.8125, 7777.4375):
        tagged(torch.full((3,), 98765.25), factor)
    made = jitmagic.report(tmp_path / "out", tagged)
    newest = [text for name, text in files_in(made.capsules[-1]).items() if name != "capsule.json"]
    assert not any(b"98765" in text or b"7777.4" in text for text in newest)


# -- the page --------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects what a browser would fetch or run, and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = [
    "</pre><script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</style></title><svg onload=alert(1)>",
    '"""\nimport os\nraise SystemExit(7)\n"""',
    "'; raise SystemExit(7) #\n",
    "*/ int x = system(0); /*",
    "\\u0022 \u2028 \udc80 \x00 {0} %s ${x}",
    "../../outside/..",
    "a" * 3000,
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_user_strings_are_escaped_in_the_report(hostile: str, tmp_path: Path) -> None:
    """Names of functions, files and classes, sources, keys, messages of exceptions."""
    text = hostile.replace("\x00", "").replace("\udc80", "")
    source = (
        f"import torch\ndef f(x, table):\n    note = {hostile!r}\n"
        f"    y = torch.tanh(x) * table[{hostile!r}]\n    print({text!r}[:0], end='')\n"
        f"    return torch.relu(y)\n"
    )
    filename = f"/tmp/{text[:200]}.py"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    names: dict[str, Any] = {"__name__": "hostile"}
    exec(compile(source, filename, "exec"), names)
    function = names["f"]
    function.__name__ = function.__qualname__ = hostile.replace("\x00", "")
    tagged = jitmagic.jit(function)
    tagged(plain(), {hostile: 2})
    made = jitmagic.report(tmp_path / "out", tagged)
    assert {p.parent.parent for p in made.capsules} == {tmp_path / "out"}
    page = Page(made.page.read_text(encoding="utf-8"))
    assert not {"script", "svg", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    for tag, attributes in page.tags:
        if tag == "img":
            assert (attributes["src"] or "").startswith("data:image/svg+xml;base64,")
        if tag == "a":
            assert re.fullmatch(r"capsules/\w+/replay\.py", attributes["href"] or "")
    for capsule in made.capsules:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(capsule / "replay.py"), run_name="__main__")
        assert ended.value.code == 0
        runpy.run_path(str(capsule / "forward_aten.py"), run_name="__main__")


def test_the_page_shows_what_explain_shows(tmp_path: Path) -> None:
    tagged = once(broken, plain())()
    made = jitmagic.report(tmp_path / "out", tagged)
    page, text = made.page.read_text(), (made.folder / "report.txt").read_text()
    found = jitmagic.explain(tagged).now
    assert found is not None
    assert str(found.full()).strip() in text
    shown = Page(page).text
    for part in ("graph break", "broken", *found.guards, *(k.name for k in found.kernels)):
        assert part in shown
    assert page.count("<style>.jitmagic") + page.count(".jitmagic{") == 1  # the style, once
    assert not re.search(r"(src|href)=['\"](https?:)?//", page)


def test_everything_tagged_or_some_of_it(tmp_path: Path) -> None:
    one, two, idle = once(inferred, plain())(), once(trained, plain())(), jitmagic.jit(mutating)
    # In a fork: here it would be what all tests before have tagged.
    code = """
        import sys, torch, jitmagic
        tagged = [jitmagic.jit(lambda x: x + n, backend="eager") for n in range(3)]
        print(tagged[0](torch.zeros(2)).tolist(), jitmagic.report(sys.argv[1]).functions)
    """
    assert run_forked(code, str(tmp_path / "all")).stdout == "[2.0, 2.0] 3\n"
    assert jitmagic.report(tmp_path / "two", one, two).functions == 2
    shown = (jitmagic.report(tmp_path / "idle", idle).folder / "report.txt").read_text()
    assert "not called yet" in shown
    with pytest.raises(TypeError, match="not compiled by jitmagic"):
        jitmagic.report(tmp_path / "none", len)
    assert not (tmp_path / "none").exists()
    assert str(made := jitmagic.report(tmp_path / "one", one)).endswith(str(made.page))
    assert "1 function, 1 capsule" in made._repr_html_()


def test_report_of_twelve_layers_is_below_two_megabytes(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    model = jitmagic.jit(nn.TransformerEncoder(layer, 12, enable_nested_tensor=False))
    model(torch.randn(2, 8, 64)).sum().backward()
    made = jitmagic.report(tmp_path / "out", model)
    assert made.capsules
    assert sum(map(len, files_in(made.folder).values())) < 2_000_000
