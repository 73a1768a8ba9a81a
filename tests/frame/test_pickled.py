"""Tagged functions in other processes: by name as any function, by value as joblib and Ray do."""

from __future__ import annotations

import copyreg
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.frame.native import Dispatcher
from tests.processes import child_environment, run_forked

BY_VALUE = """
import cloudpickle, sys, torch, jitmagic
scale = 3.0
def helper(x): return x + scale
@jitmagic.jit(backend="aot_eager", options={"recompile_limit": 5})
def step(x, k=2): return helper(x) * k
class Net(torch.nn.Module):
    def forward(self, x): return step(x).relu()
net = jitmagic.jit(Net())
step(torch.ones(3))
again = jitmagic.jit(lambda x: step(x) - 1, backend="eager")
open(sys.argv[1], "wb").write(cloudpickle.dumps((step, net, again)))
"""
THERE = """
import pickle, sys, torch
step, net, again = pickle.load(open(sys.argv[1], "rb"))
import jitmagic
from jitmagic.api import handle_of
x = torch.ones(3)
assert step(x, k=5).tolist() == [20.0] * 3 and net(x).tolist() == [8.0] * 3
assert again(x).tolist() == [7.0] * 3
handle = handle_of(step)
assert (handle.options.backend, handle.options.recompile_limit) == ("aot_eager", 5)
print(step.why(x), jitmagic.status(step), step.__wrapped__(x).tolist())
import cloudpickle
assert cloudpickle.loads(cloudpickle.dumps(step))(x).tolist() == [8.0] * 3
"""


@jitmagic.jit(backend="eager")
def named(x: Tensor) -> Tensor:
    return x * 2


def test_a_function_of_a_module_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(named)) is named


def test_pickling_by_value_tags_again_in_another_process(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    path = str(tmp_path / "pickled")
    for code in (BY_VALUE, THERE):
        done = run_forked(code, path)
        assert done.returncode == 0, done.stderr
    assert "step: compiled: not measured yet, 2 variants" in done.stdout
    assert "[8.0, 8.0, 8.0]" in done.stdout


def test_a_dispatcher_pickles_as_its_function_and_options() -> None:
    """In cloudpickle's order: the code's constants first, then the function, then its state."""
    (old,) = [c for c in named.__code__.co_consts if type(c) is Dispatcher]
    make, arguments = copyreg.dispatch_table[Dispatcher](old)  # type: ignore[misc]
    new: Any = make(*arguments)
    constants = tuple(new if c is old else c for c in named.__code__.co_consts)
    stub = types.FunctionType(named.__code__.replace(co_consts=constants), globals(), "named")
    revive, (name, _, question) = named.why.__reduce__()  # type: ignore[attr-defined]
    stub.__dict__.update(__wrapped__=named.__wrapped__, why=revive(name, stub, question))  # type: ignore[attr-defined]
    assert stub(torch.ones(2)).tolist() == [2.0, 2.0]
    handle = handle_of(stub)
    assert handle is not None and handle is not handle_of(named)
    assert handle.ledger.calls == 1
    assert new.stub() is stub


def test_dispatchers_without_a_function_refuse_to_pickle() -> None:
    lonely = jitmagic.jit(lambda x: x, backend="eager")
    (dispatcher,) = [c for c in lonely.__code__.co_consts if type(c) is Dispatcher]
    del lonely
    with pytest.raises(pickle.PicklingError, match="no tagged function"):
        copyreg.dispatch_table[Dispatcher](dispatcher)


POOLS = """
import multiprocessing, torch
from torch.utils.data import DataLoader
from tests.frame.test_pickled import named
if __name__ == "__main__":
    xs = [torch.full((3,), float(i)) for i in range(4)]
    for method in ("fork", "spawn"):  # by one process: its imports take longer than a pool
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert [y.tolist() for y in pool.map(named, xs)] == [(x * 2).tolist() for x in xs]
        how = {"collate_fn": collate, "multiprocessing_context": method}
        loader = DataLoader(xs, 2, num_workers=1, **how)
        assert [batch.sum().item() for batch in loader] == [6.0, 30.0]
"""


def test_worker_processes_can_call_tagged_functions(tmp_path: Path) -> None:
    script = tmp_path / "pools.py"
    head = "import torch\n\ndef collate(xs):\n    from tests.frame.test_pickled import named\n"
    script.write_text(f"{head}    return named(torch.stack(xs))\n\n{POOLS}")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=child_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
