"""What `import jitmagic`, and what runs a stored entry, leave unimported."""

from __future__ import annotations

import pytest

from .processes import run_forked

HEAVY = "IPython numba platformdirs rich statistics sympy torch._dynamo torch._inductor triton"
STAGES = "autograd codegen compile loops operators runtime schedule trace"

# What runs an entry that another process has compiled, and the compiler, which must not come along.
STORED = (
    "api artifact.library autograd.autograd_function autograd.replay autograd.result bytecode "
    "codegen.plan errors "
    "frame.handle frame.native frame.tag graph.autocast_mode guards.guard guards.kinds "
    "guards.source options records runtime.load runtime.native runtime.store spec symbols.size "
    "trace.entry_state trace.residual.template trace.residual_calls "
    "trace.residual_torch_calls trace.result"
)
COMPILER = (
    "autograd.decompose autograd.recording codegen.rendering compile diagnostics graph.builder "
    "graph.operators.shapes graph.operators.target_traits graph.propagate loops notebook operators "
    "schedule trace.builtins trace.machine trace.opcodes trace.values"
)


@pytest.mark.parametrize(
    ("modules", "absent"), [("", STAGES), (STORED, COMPILER)], ids=["package", "stored entries"]
)
def test_imports_are_light(modules: str, absent: str) -> None:
    heavy = (*HEAVY.split(), *(f"jitmagic.{name}" for name in absent.split()))
    script = (
        "import importlib, sys, torch; before = set(sys.modules); import jitmagic;"
        f"[importlib.import_module('jitmagic.' + name) for name in {modules.split()}];"
        "new = set(sys.modules) - before;"
        f"print([m for m in new if any(m == h or m.startswith(h + '.') for h in {heavy})])"
    )
    out = run_forked(script, imported="torch")
    assert out.stdout.strip() == "[]", out.stdout + out.stderr


def test_the_first_call_imports_what_it_needs() -> None:
    """It has imported 569 modules, and 358 since they are imported when they are needed."""
    script = (
        "import os, sys, torch, jitmagic; os.environ['PATH'] = '';"
        "f = jitmagic.jit(lambda x, y: torch.relu(x * y + 2).sum(-1));"
        "x = torch.randn(8, 64); before = set(sys.modules); f(x, x);"
        "print(len([m for m in set(sys.modules) - before if m.startswith('jitmagic.')]))"
    )
    out = run_forked(script, imported="torch", JITMAGIC_VERIFY="")
    assert 0 < int(out.stdout) <= 365, out.stdout + out.stderr
