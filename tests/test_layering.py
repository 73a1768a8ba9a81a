"""Layering: who may import whom, public names, sizes, and what the package never touches.

Everything is read out of the syntax trees: the package, and the tests of invariant 6 (what stands
outside diagnostics/ and notebook/ does not need them).
"""

from __future__ import annotations

import ast
import graphlib
import importlib
import importlib.util
import pkgutil
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .processes import ROOT

PACKAGE = ROOT / "jitmagic"
BASE = {
    "compat", "errors", "figures", "options", "platforms", "devices", "spec", "extension",
    "symbols", "budget", "torch_types", "extend", "operators", "construction", "lazy_dataclass",
    "call_warnings", "replacements", "late", "late_tables",
    "protocols",
}  # fmt: skip
STAGES = BASE | {
    "records", "bytecode", "guards", "graph", "ranks", "frame", "trace", "autograd",
    "loops", "schedule", "codegen", "runtime",
}  # fmt: skip
LARGEST_FOLDER = 25
ALLOWED: dict[str, set[str]] = {  # ARCHITECTURE.md, "Who may import whom"
    "lazy_dataclass": set(),
    "errors": {"lazy_dataclass"},
    "compat": {"errors", "lazy_dataclass"},
    "figures": set(),
    "budget": set(),
    "extend": {
        "compat",
        "errors",
        "torch_types",
        "operators",
        "devices",
        "late",
        "lazy_dataclass",
    },
    "operators": {"compat", "errors", "lazy_dataclass"},
    "options": {"errors", "torch_types", "extend", "lazy_dataclass"},
    "spec": {"lazy_dataclass"},
    "torch_types": {"compat"},
    "construction": {"errors", "lazy_dataclass"},
    "replacements": {"lazy_dataclass"},
    "call_warnings": {"lazy_dataclass"},
    "symbols": {"extension", "construction", "errors", "protocols", "lazy_dataclass"},
    "platforms": set(),
    "devices": {"platforms", "protocols", "lazy_dataclass"},
    "extension": {"errors", "_runtime", "_lazy"},
    "records": {"errors", "figures", "budget", "lazy_dataclass"},
    "progress": {"errors", "records"},
    "dependencies": set(),
    "late": set(),
    "protocols": set(),
    "late_tables": {"compat", "late"},
    "notice": {"errors"},
    "bytecode": BASE,
    "guards": BASE | {"bytecode"},
    "graph": BASE,
    "ranks": BASE | {"records"},
    "frame": BASE | {"bytecode", "guards", "records", "notice", "ranks", "_frame"},
    "trace": BASE | {"bytecode", "guards", "graph"},
    "autograd": BASE | {"graph"},
    "loops": BASE | {"graph"},
    "schedule": BASE | {"loops"},
    "codegen": BASE | {"loops", "schedule"},
    "runtime": BASE | {"codegen", "graph", "ranks"},  # graph/triton: the form of a launch
    "artifact": STAGES,
    "compile": STAGES,
    "exporting": STAGES | {"compile"},
    "quantised_linear": {"errors"},
    "packaging": STAGES | {"artifact", "api", "compile", "dependencies"},
    "api": BASE | {"frame", "ranks", "compile", "records", "bytecode"},
    "lazy_mode": BASE | {"api", "frame", "graph", "records"},
    "diagnostics": STAGES | {"api", "compile", "artifact"},
    "integrations": BASE | {"api"},
    "notebook": BASE | {"lazy_mode", "api", "diagnostics", "notice", "progress"},
    "without_native": BASE,
    "__init__": BASE
    | {"without_native", "dependencies", "api", "late", "progress", "diagnostics", "notebook"}
    | {"packaging", "quantised_linear", "lazy_mode", "exporting"},
}
# Steps of a compile, each with those it may use: a later one knows the earlier ones.
STEPS: dict[str, set[str]] = {
    "retracing": set(),
    "tracing": {"retracing"},
    "compared": set(),
    "profiler_names": set(),
    "graph_passes": set(),
    "fused_attention": set(),
    "tuning": set(),
    "thread_state": set(),
    "background": {"thread_state"},
    "lazy_backwards": set(),
    "frozen_weights": set(),
    "backends": set(),
    "template": {"profiler_names", "graph_passes"},
    "sized_backwards": {"template"},
    "sized_joint": {"template", "graph_passes", "fused_attention", "sized_backwards"},
    "sized_backend": {"sized_joint", "template", "backends"},
    "sizes": {"template", "sized_joint", "sized_backwards", "sized_backend"},
    "executable": {
        "profiler_names",
        "graph_passes",
        "tuning",
        "background",
        "lazy_backwards",
        "sizes",
        "sized_joint",
        "sized_backwards",
    },
    "buckets": {"sizes"},
    "data_partitions": {"sizes", "sized_joint", "sized_backwards"},
    "subgraphs": {"sizes", "lazy_backwards"},
    "entries": {"compared", "sizes"},
    "func_transforms": {"backends"},
    "pipeline": {
        "retracing",
        "tracing",
        "thread_state",
        "background",
        "lazy_backwards",
        "frozen_weights",
        "graph_passes",
        "fused_attention",
        "backends",
        "func_transforms",
        "sizes",
        "sized_backwards",
        "executable",
        "buckets",
        "data_partitions",
        "subgraphs",
        "entries",
    },  # fmt: skip
}
# Packages whose folders do not need one another, each with the folders that may: an object has a
# dictionary, a dictionary has objects.
ORDERED: dict[str, set[str]] = {"diagnostics": set(), "trace/values": {"objects", "containers"}}
LEAVES = {  # heavy optional packages, and the one file, or folder, that may import each
    "triton": "runtime/triton_kernels.py",
    "numba": "runtime/numba_kernels.py",
    "IPython": "notebook/",
    "jinja2": "diagnostics/explanation/html.py",
    "pygments": "diagnostics/explanation/highlight.py",
    "safetensors": "packaging/safetensors_files.py",
    "transformers": "integrations/transformers.py",
    "lightning": "integrations/lightning.py",
    "accelerate": "integrations/accelerate.py",
}
# Extra "ecosystem" alone brings these: where one is missing, its leaf is not imported.
NOT_INSTALLED = {
    f"jitmagic.{leaf[:-3].replace('/', '.')}"
    for package, leaf in LEAVES.items()
    if leaf.startswith(("integrations/", "packaging/"))
    and importlib.util.find_spec(package) is None
}
LATE = {  # files with an import inside a function: optional packages, native parts, reports
    "extension.py",
    "frame/native.py",
    "runtime/numba_kernels.py",
    "runtime/store.py",
    "runtime/triton_kernels.py",
}
RIVALS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.compile", "functorch")
LONGEST_FILE, LONGEST_FUNCTION = 500, 60
LONG_FILES = {
    # Collections of small programs, in one piece so that they are read as a list.
    "tests/bytecode/bytecode_checks/building.py",
    "tests/bytecode/bytecode_checks/corpus.py",
    "tests/bytecode/bytecode_checks/scenarios.py",
    "tests/frame/frame_checks/hooking.py",
    "tests/programs/language/test_python.py",
    "tests/trace/python_programs.py",
    "tests/trace/test_torch_modules.py",
}
FILES = sorted(PACKAGE.rglob("*.py"))
OPTIONAL = {"jitmagic.diagnostics", "jitmagic.notebook"}

Nodes = dict[type[ast.AST], list[Any]]


def each_file(rule: Callable[[Path], Iterable[str]]) -> Callable[[], None]:
    """A test of what a rule finds wrong in the files of the package. One item, and not one for each
    file: 3,600 of them take pytest longer than the rules take.
    """

    def test() -> None:
        found = [f"{path.relative_to(ROOT)}: {told}" for path in FILES for told in rule(path)]
        assert not found, "\n".join(found)

    test.__name__, test.__doc__ = rule.__name__, rule.__doc__
    return test


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def by_type(tree: ast.Module) -> Nodes:
    nodes: Nodes = defaultdict(list)
    for node in ast.walk(tree):
        nodes[type(node)].append(node)
    return nodes


@cache
def nodes_of(path: Path) -> Nodes:
    """A tree is walked once: that takes longer than all that is asked of it."""
    return by_type(tree_of(path))


@cache
def imports(path: Path) -> list[tuple[int, str, str]]:
    """(line, absolute module, imported name or "") of every import, wherever it stands."""
    package = path.relative_to(ROOT).parent.parts
    found = [(n.lineno, alias.name, "") for n in nodes_of(path)[ast.Import] for alias in n.names]
    for node in nodes_of(path)[ast.ImportFrom]:
        base = package[: len(package) - node.level + 1] if node.level else ()
        dotted = ".".join((*base, *filter(None, [node.module])))
        found += [(node.lineno, dotted, alias.name) for alias in node.names]
    return found


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` of an attribute of a name; empty for everything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


def imported_layers(path: Path) -> set[str]:
    dotted = [f"{module}.{name}".split(".") for _, module, name in imports(path)]
    return {parts[1] for parts in dotted if parts[0] == "jitmagic" and parts[1]}


# --------------------------------------------------------------------------------- who imports whom


def test_layers_have_an_order() -> None:
    list(graphlib.TopologicalSorter(ALLOWED).static_order())  # raises where there is a cycle
    list(graphlib.TopologicalSorter(STEPS).static_order())
    assert {path.stem for path in (PACKAGE / "compile").glob("*.py")} == {"__init__", *STEPS}


@each_file
def test_imports_follow_the_flow(path: Path) -> Iterator[str]:
    layer = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if extra := imported_layers(path) - ALLOWED[layer] - {layer}:
        yield f"{layer} must not import {sorted(extra)}"
    dotted = [f"{module}.{name}".split(".") for _, module, name in imports(path)]
    if layer == "compile" and path.stem in STEPS:
        steps = {parts[2] for parts in dotted if parts[:2] == ["jitmagic", "compile"]}
        if extra := (steps & STEPS.keys()) - STEPS[path.stem]:
            yield f"{path.stem} must not import {sorted(extra)}"
    others = {m for _, m, _ in imports(path) if m.startswith("jitmagic.codegen")}
    if layer == "runtime" and not others <= {"jitmagic.codegen.plan"}:
        yield "of codegen, runtime knows the plan only"


def test_modules_have_an_order() -> None:
    """No two modules need each other, be it for types alone or in a function."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    needs: dict[str, set[str]] = {}
    for name, path in names.items():
        dotted = {(module, f"{module}.{part}") for _, module, part in imports(path)}
        needs[name] = {exact if exact in names else module for module, exact in dotted} - {name}
        needs[name] &= names.keys() - {"jitmagic"}  # whose native parts are no files
    list(graphlib.TopologicalSorter(needs).static_order())  # raises, and names the cycle


@pytest.mark.parametrize("package", ORDERED)
def test_folders_of_a_package_have_an_order(package: str) -> None:
    needs: dict[str, set[str]] = {}
    folder, depth = PACKAGE / package, 2 + package.count("/")
    for path in (path for path in folder.rglob("*.py") if path.parent != folder):
        dotted = [f"{module}.{name}".split(".") for _, module, name in imports(path)]
        own = path.relative_to(folder).parts[0]
        used = {p[depth] for p in dotted if p[1:depth] == package.split("/") and len(p) > depth}
        used = {one for one in used if (folder / one).is_dir()}
        mutual = ORDERED[package]
        names = {one: "+".join(sorted(mutual)) if one in mutual else one for one in {own, *used}}
        needs.setdefault(names[own], set()).update({names[one] for one in used} - {names[own]})
    assert needs
    list(graphlib.TopologicalSorter(needs).static_order())  # raises, and names the cycle


@each_file
def test_heavy_packages_are_imported_in_one_file(path: Path) -> Iterator[str]:
    here = str(path.relative_to(PACKAGE))
    for line, module, _ in imports(path):
        site = LEAVES.get(module.partition(".")[0], here)
        if not here.startswith(site):
            yield f"line {line}: {module} is imported in {site} only"


@each_file
def test_dataclasses_compile_their_methods_late(path: Path) -> Iterator[str]:
    """Those of `dataclasses` take 0.5 ms each when the package is imported."""
    for line, module, name in imports(path):
        if (module, name) == ("dataclasses", "dataclass") and path.stem != "lazy_dataclass":
            yield f"line {line}: import it from lazy_dataclass"


@each_file
def test_imports_stand_at_the_top(path: Path) -> Iterator[str]:
    bodies = [range(f.lineno, (f.end_lineno or f.lineno) + 1) for f in functions(path)]
    inner = [line for line, *_ in imports(path) if any(line in body for body in bodies)]
    if inner and str(path.relative_to(PACKAGE)) not in LATE:
        yield f"lines {inner}"


def test_tests_elsewhere_need_neither_diagnostics_nor_notebook() -> None:
    """Invariant 6: both can be deleted and every other test stays green."""
    spared = tuple(ROOT / "tests" / folder for folder in ("browser", "diagnostics", "notebook"))
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path == Path(__file__) or any(path.is_relative_to(folder) for folder in spared):
            continue
        for line, module, name in imports(path):
            named = {module, f"{module}.{name}"}
            assert not any(
                name == package or name.startswith(f"{package}.")
                for name in named
                for package in OPTIONAL
            ), f"{path}:{line}"
        for node in nodes_of(path)[ast.Attribute]:
            assert dotted_name(node) != "jitmagic.explain", f"{path}:{node.lineno}"
        for node in nodes_of(path)[ast.Constant]:
            for word in ("jitmagic.explain", "jitmagic.diagnostics", "jitmagic.notebook"):
                named = isinstance(node.value, str) and word in node.value
                assert not named, f"{path}:{node.lineno}"


# ----------------------------------------------------------------------------------------- rivals


def is_rival(dotted: str) -> bool:
    return any(dotted == rival or dotted.startswith(f"{rival}.") for rival in RIVALS)


def rivals_in(nodes: Nodes) -> list[str]:
    """Where a tree imports or names what jitmagic competes with; also through a string."""
    named = [(node, alias.name) for node in nodes[ast.Import] for alias in node.names]
    for node in nodes[ast.ImportFrom]:
        if not node.level:
            named += [(node, f"{node.module}.{alias.name}") for alias in node.names]
    named += [(node, dotted_name(node)) for node in nodes[ast.Attribute]]
    named += [(n, n.value) for n in nodes[ast.Constant] if isinstance(n.value, str)]
    return [f"line {node.lineno}: {name}" for node, name in named if is_rival(name)]


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo.utils",
        "from torch import _inductor",
        "from torch._functorch.aot_autograd import aot_function",
        "import torch\ntorch.compile(f)",
        "import torch\nrun = torch.compile",
        "importlib.import_module('torch._dynamo')",
    ],
)
def test_rivals_are_recognised(code: str) -> None:
    assert rivals_in(by_type(ast.parse(code)))


@each_file
def test_rivals_are_never_used(path: Path) -> Iterator[str]:
    # Names of modules: whose functions the tracer does not look into, torch.compile's wrappers, and
    # where torch keeps what a program has set by torch.compiler.set_stance and what is in no graph.
    known = {
        "compat/torch_compile.py": 3,
        "pytorch/torch_rules.py": 2,
        "frame/library.py": 1,
        "frame/stance.py": 1,
        "objects/monkey_patches.py": 1,
    }
    found = rivals_in(nodes_of(path))
    if len(found) != (expected := known.get("/".join(path.parts[-2:]), 0)):
        yield f"{len(found)} names, not {expected}: {found}"


# ---------------------------------------------------------------------------------- public names


def test_all_names_exist() -> None:
    for module in pkgutil.walk_packages([str(PACKAGE)], "jitmagic."):
        if module.name.rpartition(".")[2].startswith("_") or module.name in NOT_INSTALLED:
            continue
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            assert hasattr(loaded, name), f"{module.name}.{name}"


@each_file
def test_what_others_import_is_published(path: Path) -> Iterator[str]:
    for line, module, name in imports(path):
        if not name or not module.startswith("jitmagic."):
            continue
        package = ".".join(module.split(".")[:2])
        if package in OPTIONAL and not (ROOT / package.replace(".", "/")).exists():
            continue  # deleted, as invariant 6 allows
        if module in NOT_INSTALLED:
            continue
        loaded = importlib.import_module(module)
        published = getattr(loaded, "__all__", None)
        if published is None or name in published:
            continue
        submodules = pkgutil.iter_modules(getattr(loaded, "__path__", ()))
        if name not in {found.name for found in submodules}:
            yield f"line {line}: {module}.{name}"


@each_file
def test_reversed_nodes_are_no_iterator(path: Path) -> Iterator[str]:
    """`reversed(graph.nodes)` can be looped over; only since torch 2.12 is there a next() of it."""
    for node in nodes_of(path)[ast.Call]:
        match node:
            case ast.Call(
                func=ast.Name("next"),
                args=[ast.Call(func=ast.Name("reversed"), args=[ast.Attribute(attr="nodes")]), *_],
            ):
                yield f"line {node.lineno}: next(iter(reversed(...)))"


# ------------------------------------------------------------------------------------------- sizes


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return nodes_of(path)[ast.FunctionDef] + nodes_of(path)[ast.AsyncFunctionDef]


@each_file
def test_functions_are_short(path: Path) -> Iterator[str]:
    for node in functions(path):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > LONGEST_FUNCTION:
            yield f"{node.name}: {length} lines"


def test_files_are_short() -> None:
    kinds = {".py", ".c", ".cpp", ".h"}
    folders = ("jitmagic", "extensions", "tests", "demos")
    for path in sorted(p for folder in folders for p in (ROOT / folder).rglob("*")):
        if path.suffix in kinds and path.is_file():
            here = str(path.relative_to(ROOT))
            length = len(path.read_text().splitlines())
            assert length <= LONGEST_FILE or here in LONG_FILES, f"{here}: {length} lines"


def test_folders_are_small() -> None:
    for folder in {path.parent for path in FILES}:
        count = len(list(folder.glob("*.py")))
        assert count <= LARGEST_FOLDER, f"{folder.relative_to(ROOT)}: {count} files"


def test_the_map_of_the_code_names_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    paths = set(re.findall(r"`([\w.]+/[\w./]*)`", text))
    assert len(paths) > 30
    assert not [p for p in sorted(paths) if not ((ROOT / p).exists() or (PACKAGE / p).exists())]
    assert len(text.splitlines()) <= 120 and max(map(len, text.splitlines())) <= 120  # one page


def test_long_files_are_still_long() -> None:
    for here in LONG_FILES:
        length = len((ROOT / here).read_text().splitlines())
        assert length > LONGEST_FILE, f"{here} has {length} lines: it is no exception any more"
