"""The entry-point group `jitmagic`: extensions of installed packages are loaded at the first call,
as an installed package publishes them: by a dist-info folder on the path.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import run_forked

EXTENSION = """
print("loading")
import torch
from jitmagic import extend

def doubled(gm, context):
    output = gm.graph.output_node()
    with gm.graph.inserting_before(output):
        made = [gm.graph.call_function(torch.mul, (node, 2)) for node in output.args[0]]
    output.args = (tuple(made),)

def register():
    extend.register_pass("captured", doubled)
    extend.register_backend("outside", lambda gm, inputs: gm.forward)

def published(gm, example_inputs):
    print("published backend")
    return gm.forward
"""
ENTRY_POINTS = """
[jitmagic]
broken = outside_extension_missing
outside = outside_extension:register

[torch_dynamo_backends]
theirs = outside_extension:published
"""
PRELUDE = """
import sys, warnings
sys.path.insert(0, {folder!r})
import torch, jitmagic
assert "outside_extension" not in sys.modules
def f(x):
    return x + 1
x = torch.ones(2)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside_extension.py").write_text(EXTENSION)
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


def lines_of(folder: Path, script: str) -> list[str]:
    done = run_forked(PRELUDE.format(folder=str(folder)) + script, imported="torch")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_extensions_load_at_the_first_call_and_apply_to_it(folder: Path) -> None:
    script = """
fast = jitmagic.jit(f)
print("tagged")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    print(fast(x).tolist())
    print(jitmagic.jit(lambda x: x - 3)(x).tolist())
for one in seen:
    print(one.category.__name__, one.message)
"""
    told = lines_of(folder, script)
    warning = (
        "FallbackWarning the extension 'broken' of outside (outside_extension_missing) is not "
        "loaded: ModuleNotFoundError: No module named 'outside_extension_missing'"
    )
    assert told == ["tagged", "loading", "[4.0, 4.0]", "[-4.0, -4.0]", warning]


@pytest.mark.parametrize(
    ("name", "printed"), [("outside", ["loading"]), ("theirs", ["loading", "published backend"])]
)
def test_names_of_backends_are_found_when_they_are_asked_for(
    folder: Path, name: str, printed: list[str]
) -> None:
    script = f"""
warnings.simplefilter("ignore")
fast = jitmagic.jit(f, backend={name!r})
jitmagic.extend.unregister("doubled")
print(fast(x).tolist())
"""
    assert lines_of(folder, script) == [*printed, "[2.0, 2.0]"]


def test_error_for_an_unknown_backend_lists_those_of_packages(folder: Path) -> None:
    script = """
warnings.simplefilter("ignore")
try:
    jitmagic.jit(f, backend="their")
except jitmagic.OptionError as error:
    print(error)
"""
    message = (
        "unknown backend 'their' (did you mean 'theirs'?); known: native, aot_eager, eager, "
        "inductor, outside, theirs"
    )
    assert lines_of(folder, script) == ["loading", message]
