"""The table of torch's private names: complete, right for this torch, and what a gap leads to."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

import jitmagic
from jitmagic import compat
from jitmagic.compat import table, versions
from jitmagic.errors import UnsupportedTorch

from .processes import ROOT, run_forked

PACKAGE = ROOT / "jitmagic"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent.name != "compat"]
# A build, keys on disk, what a bundle, a saved program or a list was made by: no comparison.
READ_VERSION = {
    "artifact/library.py", "extension.py", "late_tables.py", "packaging/cxx.py",
    "packaging/loading.py", "packaging/saving.py", "runtime/bundles.py", "runtime/tune.py",
}  # fmt: skip


# ---------------------------------------------------------------------------- where names are bound


def dotted_name(node: ast.expr) -> list[str]:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what is reached through a private part of a module of torch.

    Operators (torch.ops.aten._softmax) are part of no module.
    """
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            torchs = [alias for alias in node.names if alias.name.partition(".")[0] == "torch"]
            for alias in torchs:
                modules[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                if any(map(is_private, alias.name.split("."))):
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                modules[alias.asname or alias.name] = full
                if any(map(is_private, full.split("."))):
                    yield node.lineno, full
    for node in ast.walk(tree):
        parts = dotted_name(node) if isinstance(node, ast.Attribute) else []
        if parts and parts[0] in modules and parts[1:2] != ["ops"]:
            if any(map(is_private, parts[1:])):
                yield node.lineno, ".".join((modules[parts[0]], *parts[1:]))


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._C._set_grad_enabled(False)",
        "from torch._C import _nn",
        "from torch.utils import _pytree",
        "import torch._ops",
        "from torch.optim import optimizer\noptimizer._global_optimizer_pre_hooks",
        "import torch.nn.functional as F\nF._pad",
    ],
)
def test_private_names_are_recognised(code: str) -> None:
    assert list(private_names(ast.parse(code)))


def test_private_names_of_torch_are_bound_in_compat_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        for line, name in private_names(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


def reads_version(node: ast.AST) -> bool:
    parts = dotted_name(node) if isinstance(node, ast.Attribute) else []
    return parts[:2] == ["torch", "__version__"]


def test_the_version_of_torch_is_compared_in_compat_alone() -> None:
    reads = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if any(map(reads_version, ast.walk(ast.parse(path.read_text()))))
    }
    assert reads == READ_VERSION


# ------------------------------------------------------------------------------------ this torch


def test_this_torch_has_every_name_of_the_table() -> None:
    for module in pkgutil.iter_modules(compat.__path__):
        importlib.import_module(f"jitmagic.compat.{module.name}")
    assert not versions.is_newer(torch.__version__)
    assert len(table.ROWS) > 100
    assert table.missing() == []
    outside = [row for row in table.ROWS if not row.is_expected]
    assert not [row.name for row in outside if row.is_found], "their versions are wrong"


def test_the_range_of_versions_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert versions.REQUIREMENT in project["dependencies"]
    assert versions.release("2.15.0a0+git1234") == (2, 15)
    assert versions.is_older("2.10.1") and not versions.is_older("2.11.0")


def operator_names(tree: ast.Module) -> set[tuple[str, ...]]:
    """Return (namespace, operator[, overload]) of the operators that the code names."""
    named = (dotted_name(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    full = (["torch", "ops", *parts] if parts[:1] == ["aten"] else parts for parts in named)
    return {tuple(parts[2:5]) for parts in full if parts[:2] == ["torch", "ops"] and parts[3:]}


def has_operator(name: tuple[str, ...]) -> bool:
    try:
        functools.reduce(getattr, name, torch.ops)
    except AttributeError:
        return False
    return True


def test_this_torch_has_every_operator_that_the_package_names() -> None:
    names = set().union(*(operator_names(ast.parse(path.read_text())) for path in FILES))
    assert ("aten", "_to_copy", "default") in names and len(names) > 500
    of_torch = sorted(name for name in names if name[0] != "jitmagic")
    assert not [".".join(name) for name in of_torch if not has_operator(name)]


def test_this_torch_has_every_header_that_the_extensions_include() -> None:
    sources = [path for path in (ROOT / "extensions").rglob("*") if path.suffix in (".cpp", ".h")]
    included = re.compile(r"#\s*include <((?:ATen|c10|torch)/[^>]+)>")
    headers = {header for path in sources for header in included.findall(path.read_text())}
    assert len(headers) > 30
    folders = include_paths()
    assert not [h for h in sorted(headers) if not any(Path(f, h).exists() for f in folders)]


# --------------------------------------------------------------------------------- what is missing


def test_a_missing_name_raises_only_where_it_is_used() -> None:
    rows = len(table.ROWS)
    absent = table.private("torch._C._has_no_such_name")
    try:
        assert table.missing() == ["torch._C._has_no_such_name"]
        assert "_has_no_such_name" in table.summary()
    finally:
        del table.ROWS[rows:]
    assert not isinstance(torch.zeros(1), absent)
    for use in (absent, absent.at, type("Derived", (absent,), {})):
        with pytest.raises(UnsupportedTorch, match="has no torch._C._has_no_such_name"):
            use(1)


def test_a_name_of_other_versions_has_a_substitute() -> None:
    rows = len(table.ROWS)
    try:
        assert table.private("torch._C._gone", until=versions.OLDEST, otherwise=abs) is abs
        assert table.private("torch._C._new", since=(9, 0), otherwise=abs) is abs
        assert table.missing() == []
    finally:
        del table.ROWS[rows:]


USE = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import jitmagic
    at_import = [str(one.message) for one in told]
    @jitmagic.jit
    def f(x):
        return (x * 2).sum()
    @jitmagic.jit
    def g(x):
        return x + 1
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        f(x).backward()
        g(x)
    assert x.grad.tolist() == [4.0] * 3
print(len(at_import), "|", at_import[0].partition(chr(10))[0] if at_import else "", "|")
print(len(told) - len(at_import), "|", *[str(one.message) for one in told[len(at_import):]])
print(jitmagic.api.handle_of(f).outcome)
"""


def outcome_without(change: str) -> list[str]:
    done = run_forked(f"import torch\n{change}\n{USE}", imported="torch")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_without_a_rarely_used_name_everything_else_is_compiled() -> None:
    at_import, later, outcome = outcome_without("del torch._transformer_encoder_layer_fwd")
    assert at_import.startswith("0 |") and later.startswith("0 |")
    assert outcome == "compiled"


def test_a_name_that_every_compile_needs_is_reported_at_import_and_at_use() -> None:
    name = "_saved_tensors_hooks_get_disabled_error_message"
    at_import, *later = outcome_without(f"del torch._C._autograd.{name}")
    assert at_import.startswith(f"1 | torch {torch.__version__} lacks torch._C._autograd.{name};")
    assert "UnsupportedTorch" in later[0]
    assert "failed: UnsupportedTorch" in "".join(later[1:])


def test_a_compiler_that_cannot_be_imported_is_reported_once_for_all_functions() -> None:
    at_import, *later, outcome = outcome_without(
        "import sys; sys.modules['jitmagic.compile.sizes'] = None"
    )
    assert at_import.startswith("0 |")
    assert later[0].startswith("1 | CompilerUnavailable: the compiler cannot be loaded, so every")
    assert "failed" in outcome


NEXT = f"""
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
for name in ("_frame", "_runtime"):
    path = "{PACKAGE}/" + name + EXTENSION_SUFFIXES[0]
    full = "jitmagic." + name
    sys.modules[full] = module_from_spec(spec_from_file_location(full, path))
    sys.modules[full].TORCH_VERSION = "9.0.0"
torch.__version__ = "9.0.0"
"""


def test_a_newer_torch_works_with_one_warning() -> None:
    at_import, later, outcome = outcome_without(NEXT)
    assert at_import.startswith("1 | torch 9.0.0 has all ")
    assert later.startswith("0 |")
    assert outcome == "compiled"


def test_a_newer_torch_without_some_names_is_reported_at_import() -> None:
    gone = "del torch._C._jit_resolve_packet, torch._transformer_encoder_layer_fwd"
    at_import, later, outcome = outcome_without(f"{NEXT}\n{gone}")
    assert "1 | torch 9.0.0 lacks " in at_import
    assert "torch._C._jit_resolve_packet" in at_import
    assert later.startswith("0 |")
    assert outcome == "compiled"


@pytest.mark.skipif(table.HERE < (2, 14), reason="new in torch 2.14")
def test_an_operator_that_replaces_memory_is_left_to_eager() -> None:
    def fn(x, y):
        made = x.clone()
        torch.ops.aten.shallow_copy_data_(made, y)
        return made + 1

    x, y = torch.zeros(3), torch.ones(3)
    for _ in range(2):
        assert torch.equal(jitmagic.jit(fn)(x, y), fn(x, y))
