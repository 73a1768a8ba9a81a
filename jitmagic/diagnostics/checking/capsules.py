"""capsules: the files with which a compiled graph can be replayed on another machine.

Input: the records of one variant of a frame. Output: a `Capsule`, the texts of its files:

    replay.py        compares the compiled graph with eager on random inputs, or says why it cannot
    capsule.json     outcome, inputs, guards, torch's state, options, versions, build commands
    source.py        the user's functions that the graph was captured from
    NAME_aten.py     each ATen graph (NAME: forward, backward) as a script
    NAME_loops.txt   the loop program after scheduling
    NAME.cpp, NAME_triton.py, NAME_numba.py   generated code

Tensor values are never included: inputs are described by specs and drawn with fixed seeds.
"""

from __future__ import annotations

import json
import linecache
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch.fx import GraphModule

from ...errors import CompileFailed
from ...guards.check import show_guard
from ...guards.guard import GlobalState, StateFacts
from ...lazy_dataclass import dataclass
from ...loops.show import show
from ...options import Options
from ...records import CompileRecord, Failed
from ...runtime.toolchain import build_command, linked_with
from ...spec import TensorSpec, spec_of
from ...symbols.size import Size, hint_of
from ...trace.result import Trace
from ..builds import (
    at_first_sizes,
    builds_in_use,
    graphs_of,
    inputs_of,
    operations_of,
    partitions_of,
)
from ..sources import function_around
from .cases import attributes_of, changed_options, lifted
from .scripts import NotWritable, inputs_text, random_tensor_text, script

T = TypeVar("T")

__all__ = ["Capsule", "capsule_of", "versions"]

_SUFFIX = {"cpp": ".cpp", "triton": "_triton.py", "numba": "_numba.py"}
# The shell command finds the package without importing it, because that would import torch.
_PACKAGE = "from importlib.util import find_spec as f; print(f('jitmagic').origin)"
_HEADERS = f'$(dirname "$(python -c "{_PACKAGE}")")/include'
_NO_REPLAY = '''\
"""Prints why this graph cannot be replayed. Written by jitmagic.report."""

from jitmagic.diagnostics.checking.scripts import not_replayable

if __name__ == "__main__":
    raise SystemExit(not_replayable({why!r}))
'''
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True)
class Capsule:
    """The files of one variant.

    name: usable as a folder name; title: the function's name
    why_not: why it cannot be replayed, "" if it can; files: texts by file name
    """

    name: str
    title: str
    outcome: str
    why_not: str
    files: dict[str, str]


def capsule_of(
    records: Sequence[CompileRecord],
    source: tuple[str, int, tuple[str, ...]],
    options: Options,
) -> Capsule | None:
    """Return the capsule of one variant; None if its graph has no operations.

    records: those of the variant, its backward and further sizes after it
    source: file, first line and lines of the tagged function
    """
    first = records[0]
    traced = first.result("trace")
    if not isinstance(traced, Trace) or not operations_of(traced.graph.graph):
        return None
    replayed, why_not = _replay_script(traced, options)
    files = {"replay.py": replayed, "source.py": _source(traced, source)}
    generated, builds = _generated(records, options)
    files |= generated
    facts = {
        "function": first.name,
        "variant": first.number,
        "outcome": str(first.outcome),
        "traceback": first.outcome.traceback if isinstance(first.outcome, Failed) else "",
        "not replayable": why_not,
        "inputs": [_described(entry.name, entry.spec) for entry in traced.inputs],
        "seeds": "torch.manual_seed(0) before each run; each input is drawn with seed 0",
        "guards": [show_guard(guard) for guard in traced.guards],
        "options": _plain(changed_options(options)),
        "versions": versions(),
        "build": builds,
    }
    files["capsule.json"] = json.dumps(facts, indent=1)
    slug = re.sub(r"[^A-Za-z0-9_]+", "_", first.name).strip("_")[:40] or "graph"
    return Capsule(slug, first.name, str(first.outcome), why_not, files)


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform, and the loaded packages used by a compile."""
    packages = ("jitmagic", "torch", "numpy", "numba", "triton")
    loaded = {name: sys.modules[name] for name in packages if name in sys.modules}
    known = {name: str(getattr(module, "__version__", "?")) for name, module in loaded.items()}
    cuda = {"cuda": str(torch.version.cuda)} if torch.version.cuda else {}
    python = {"python": platform.python_version(), "platform": platform.platform()}
    return {**python, **known, **cuda, "threads": str(torch.get_num_threads())}


# -- the graph as it was captured ------------------------------------------------------------------


def _replay_script(traced: Trace, options: Options) -> tuple[str, str]:
    """Return the text of replay.py, and why it cannot replay the graph ("" if it can)."""
    try:
        traced = at_first_sizes(traced)
        state = _state(traced)
        chosen = changed_options(options)
        if callable(options.backend):
            raise NotWritable("it was compiled by a custom backend")
        texts = [random_tensor_text(entry.spec) for entry in traced.inputs]
        texts += _constants(traced.graph)
        rest = (
            f"def inputs():\n    return {inputs_text(texts)}\n\n\n"
            f"STATE = {state}\nOPTIONS = {chosen!r}\n\n\n"
            'if __name__ == "__main__":\n'
            "    raise SystemExit(replay(repro, inputs, state=STATE, options=OPTIONS))\n"
        )
        what = "Compares a graph that jitmagic captured with eager."
        return script(what, "report", lifted(traced.graph), "replay", rest), ""
    except (NotWritable, CompileFailed) as error:
        why = str(error)
        return _NO_REPLAY.format(why=why), why


def _constants(gm: GraphModule) -> list[str]:
    """Return the source of the tensors that the graph holds as attributes."""
    return [random_tensor_text(spec_of(tensor)) for tensor in attributes_of(gm)]


def _state(traced: Trace) -> str:
    """Return the source of torch's state at the trace, as the argument `state` of `replay`."""
    facts: StateFacts = next(g.facts for g in traced.guards if isinstance(g, GlobalState))
    if facts.function_modes or facts.dispatch_modes:
        raise NotWritable("it was compiled under a custom torch-function or dispatch mode")
    known = {"cpu": facts.autocast_cpu, "cuda": facts.autocast_cuda}
    state = {
        "grad": facts.grad_enabled,
        "inference": facts.inference_mode,
        "autocast": {where: dtype for where, dtype in known.items() if dtype is not None},
        "default": facts.default_dtype,
        "deterministic": facts.deterministic,
    }
    return repr(state)


def _described(name: str, spec: TensorSpec) -> dict[str, object]:
    varies = [dim for dim, size in enumerate(spec.shape) if isinstance(size, Size)]
    return {
        "name": name,
        "shape": [hint_of(size) for size in spec.shape],
        "stride": [hint_of(stride) for stride in spec.stride],
        "varying dimensions": varies,
        "dtype": str(spec.dtype),
        "device": str(spec.device),
        "requires_grad": spec.requires_grad,
        "is_leaf": spec.is_leaf,
    }


def _plain(options: object) -> object:
    """Return the options as JSON values; an object becomes the name of its type."""
    return json.loads(json.dumps(options, default=lambda value: f"<{type(value).__name__}>"))


# -- the user's code -------------------------------------------------------------------------------


def _source(traced: Trace, source: tuple[str, int, tuple[str, ...]]) -> str:
    """Return the source of the tagged function, then of the functions that were inlined into it."""
    file, first, lines = source
    parts = [_excerpt(file, first, lines)] if lines else []
    nodes = traced.graph.graph.nodes
    places = {(x.filename, x.lineno) for node in nodes for x in node.meta.get("lines", ())}
    inside = range(first, first + len(lines))
    spans = {
        function_around(name, line)
        for name, line in places
        if not (name == file and line in inside) and not name.startswith(_TORCH)
    }
    for name, begin, end, _ in sorted(spans):
        text = [linecache.getline(name, line) for line in range(begin, end + 1)]
        parts.append(_excerpt(name, begin, text))
    return "\n\n".join(parts) or "# the source is not known\n"


def _excerpt(file: str, first: int, lines: Iterable[str]) -> str:
    return f"# {file!r}, from line {first}\n{''.join(lines)}"


# -- what was generated ----------------------------------------------------------------------------


def _generated(
    records: Sequence[CompileRecord], options: Options
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files of each executable, and by file name the command that builds it."""
    files: dict[str, str] = {}
    commands: dict[str, str] = {}
    for name, gm in _aten_graphs(records[0]):
        files[f"{name}_aten.py"] = _aten_script(gm)
    for name, build in _numbered((build.name, build) for build in builds_in_use(records)):
        files[f"{name}_loops.txt"] = show(build.schedule.program)
        if build.source is None:
            continue
        file = f"{name}{_SUFFIX.get(build.source.language, '.txt')}"
        files[file] = build.source.text
        if build.source.language == "cpp":
            cxx = options.cxx or "c++"
            text = build.source.text
            sources = [file, *(f"{_HEADERS}/{needed}" for needed in linked_with(text))]
            command = build_command(cxx, text, _HEADERS, sources, f"{name}.so")
            commands[file] = " ".join(command)
    return files, commands


def _aten_graphs(record: CompileRecord) -> list[tuple[str, GraphModule]]:
    named = (
        (("forward", "backward")[direction], gm)
        for parts in partitions_of(record)
        for direction, gm in enumerate(graphs_of(parts))
    )
    return list(_numbered(named))


def _numbered(named: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """Yield the values with unique names: the second one with a name is NAME_2."""
    seen: dict[str, int] = {}
    for name, value in named:
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}_{seen[name]}"), value


def _aten_script(gm: GraphModule) -> str:
    inputs = inputs_text([*map(random_tensor_text, inputs_of(gm)), *_constants(gm)])
    rest = f'if __name__ == "__main__":\n    run(repro, {inputs})\n'
    try:
        return script("Runs an ATen graph on random inputs.", "report", lifted(gm), "run", rest)
    except NotWritable as error:
        text = "\n".join(f"# {line}" for line in gm.code.strip().splitlines())
        return f"# It cannot run as a script: {str(error)!r}\n{text}\n"
