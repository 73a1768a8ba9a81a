"""Imports of a first compile: modules that only other programs need stay unloaded."""

from __future__ import annotations

import pytest

from tests.processes import run_forked

HEAVY = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch._decomp",
    "torch._refs",
    "torch._subclasses.fake_tensor",
    "torch._export",
    "torch.export",
    "torch.onnx",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "sympy",
    "triton",
    "numba",
    "IPython",
    "numpy.testing",
)

FIRST = """
import sys, torch
import torch.fx
before = set(sys.modules)
import jitmagic
x, y = torch.randn(8, 64), torch.randn(8, 64, requires_grad={grad})
f = jitmagic.jit(lambda x, y: torch.relu(x * y + 2).sum(-1), fullgraph=True)
assert torch.allclose(f(x, y), torch.relu(x * y + 2).sum(-1), rtol=1e-5, atol=1e-4)
if {grad}:
    f(x, y).sum().backward()
new = set(sys.modules) - before
print([name for name in new if any((name + ".").startswith(heavy + ".") for heavy in {heavy})])
"""


@pytest.mark.parametrize("grad", [False, True])
def test_a_first_compile_imports_nothing_heavy(grad: bool) -> None:
    child = run_forked(FIRST.format(grad=grad, heavy=HEAVY), imported="torch")
    assert (child.returncode, child.stdout.strip()) == (0, "[]"), child.stderr


STEP = """
import sys, torch
from torch.optim.lr_scheduler import StepLR
before = set(sys.modules)
import jitmagic

def step(x):
    model = torch.nn.Linear(4, 2)
    opt = torch.optim.Adam(model.parameters())
    scheduler = StepLR(opt, 3)
    model(x).sum().backward()
    opt.step()
    scheduler.step()
    return opt.param_groups[0]["lr"]

assert jitmagic.jit(step, fullgraph=True, backend="eager")(torch.ones(3, 4)) == 1e-3
new = set(sys.modules) - before
print([name for name in new if any((name + ".").startswith(heavy + ".") for heavy in {heavy})])
"""


def test_a_first_optimizer_imports_no_torch_compile() -> None:
    """Optimizer.add_param_group and others stand behind a wrapper that does so in eager."""
    child = run_forked(STEP.format(heavy=HEAVY), imported="torch")
    assert (child.returncode, child.stdout.strip()) == (0, "[]"), child.stderr


READERS = {
    "attribute": "lambda x: x if torch.onnx.is_in_onnx_export() else x * 2",
    "import statement": "inside",
    "imported before": "lambda x: x if q() else x * 2",
    "replaced": "lambda x: x if torch.onnx.is_in_onnx_export() else x * 2",
}

READ = """
import sys, torch, jitmagic

def inside(x):
    from torch.onnx import is_in_onnx_export
    return x if is_in_onnx_export() else x * 2

def asked():
    return True

{setup}
f = {reader}
j = jitmagic.jit(f, fullgraph=True, backend="eager")
x = torch.randn(3)
assert "torch.onnx" not in sys.modules or {loaded}
first, second = j(x), j(x)  # the facts of the first hold for the second
assert torch.equal(first, f(x)) and torch.equal(second, f(x))
compiles = len(jitmagic.api.handle_of(j).journal)
assert compiles == 1, compiles
torch.onnx.is_in_onnx_export = asked
assert torch.equal(j(x), f(x))
"""


@pytest.mark.parametrize("how", READERS)
def test_a_lazy_module_is_imported_when_it_is_read(how: str) -> None:
    setup = {
        "imported before": "from torch.onnx import is_in_onnx_export as q",
        "replaced": "import torch.onnx; torch.onnx.is_in_onnx_export = asked",
    }.get(how, "")
    child = run_forked(READ.format(reader=READERS[how], setup=setup, loaded=bool(setup)))
    assert child.returncode == 0, child.stderr
