"""Other systems: a package without its native part runs as eager, and the facts of each system."""

from __future__ import annotations

import sys

import pytest

from jitmagic import platforms

from .processes import run_forked

WITHOUT_NATIVE = """
import sys, warnings
import torch
sys.platform = "darwin"
sys.modules["jitmagic._frame"] = sys.modules["jitmagic._runtime"] = None
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    import jitmagic
    @jitmagic.jit
    def f(x, n):
        jitmagic.graph_break()
        return torch.relu(x) * n
    @jitmagic.jit(options={"fuse": False}, fullgraph=True)
    def g(x):
        return x + 1
    module = jitmagic.jit(torch.nn.Linear(2, 3))
    x = torch.arange(-2.0, 2.0)
    jitmagic.mark_dynamic(x, 0)
    print(f(x, 3).tolist(), g(x).tolist(), module(x[:2]).shape, jitmagic.wait())
    jitmagic.reset()
print(len(caught), caught[0].category.__name__, caught[0].message)
try:
    jitmagic.jit(f, backend="nonsense")
except jitmagic.OptionError as error:
    print("OptionError")
try:
    from IPython.core.interactiveshell import InteractiveShell
except ImportError:
    print("[1.0]")
else:
    shell = InteractiveShell()
    shell.run_cell("%load_ext jitmagic")
    shell.run_cell("%%compile\\nimport torch\\nprint((torch.zeros(1) + 1).tolist())")
    shell.run_cell("%unload_ext jitmagic")
"""


def test_without_a_native_part_functions_run_as_eager_and_one_warning_says_why() -> None:
    done = run_forked(WITHOUT_NATIVE, imported="torch")
    lines = done.stdout.splitlines()
    assert lines[0] == "[0.0, 0.0, 0.0, 3.0] [-1.0, 0.0, 1.0, 2.0] torch.Size([3]) True", done
    assert lines[1].startswith("1 FallbackWarning functions tagged with jitmagic run as eager here")
    assert "pip install" in lines[2]
    assert "xcode-select --install" in lines[3]
    assert lines[4:] == ["OptionError", "[1.0]"], done


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


@pytest.mark.usefixtures("mac")
def test_facts_of_macos_have_defaults_where_sysctl_is_missing() -> None:
    assert platforms.l2_bytes(1 << 20) == 1 << 20
    assert platforms.processor_features()
    assert platforms.compiler_names()[0] == "clang++"
    assert not platforms.loads_elf()


def test_facts_of_macos_come_from_sysctl(monkeypatch: pytest.MonkeyPatch, mac: None) -> None:
    values = {"hw.l2cachesize": (4 << 20).to_bytes(8, sys.byteorder)}
    monkeypatch.setattr(platforms, "_sysctl", lambda name: values.get(name, b""))
    assert platforms.l2_bytes(1 << 20) == 4 << 20


def test_facts_of_linux() -> None:
    assert platforms.usable_processors() >= 1
    assert platforms.processor_features() == platforms.processor_features()
    assert platforms.native_flags() in (("-march=native",), ("-mcpu=native",))
