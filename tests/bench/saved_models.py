"""Saves the models of ../shared/models, loads each in another process, and compares the bytes.

    python -m tests.bench.saved_models [--models REGEX] [--json FILE]

For each model it prints whether the results of the loaded file have the bytes of the compiled
call's, the time that `jitmagic.load` took in a new process (of the processor, since other programs
may run), and the size of the file. The libraries of the suite
(transformers, timm) must be importable. Inference only; the sizes are the suite's "tiny" ones.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from tests.processes import ROOT, child_environment

_PLACES = [folder / "shared" / "models" for folder in ROOT.parents]  # a worktree is deeper
SUITE = next((place for place in _PLACES if place.is_dir()), _PLACES[0])
SEED, SECOND = 7, 11  # of the inputs: those of the example, and others of its shapes


def _program(name: str) -> tuple[Any, Any]:
    """Return the function or module of a model for inference, and its function of inputs."""
    sys.path.insert(0, str(SUITE))
    import suite

    torch.manual_seed(0)
    case = suite.build(name, "tiny")
    if case.infer is None:
        return case.state.eval(), case.inputs
    state, infer = case.state, case.infer
    if isinstance(state, torch.nn.Module):
        state.eval()
    return lambda *args, **kwargs: infer(state, *args, **kwargs), case.inputs


def _save(name: str, folder: str) -> None:
    """Save a model, and the results of its compiled calls."""
    import jitmagic

    program, inputs = _program(name)
    args, kwargs = inputs(SEED)
    calls = [(args, kwargs), inputs(SECOND)]
    grad = torch.enable_grad if name == "nb_pinn_burgers" else torch.no_grad
    with grad():
        compiled = jitmagic.jit(program, fullgraph=True, options={"keep": "compiled"})
        compiled(*args, **kwargs)  # the model may fill caches of its own
        example = tuple(args) if not kwargs else _by_name(program, args, kwargs)
        jitmagic.save(program, f"{folder}/model.jmz", example)
        results = []
        for call in calls:  # from the state that was saved: they may change it
            torch.manual_seed(3)
            results.append(compiled(*call[0], **call[1]))
    torch.save((calls, results), f"{folder}/results.pt")


def _by_name(program: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    import inspect

    called = program.forward if isinstance(program, torch.nn.Module) else program
    bound = inspect.signature(called).bind(*args, **kwargs)
    return {**bound.arguments, **bound.arguments.pop("kwargs", {})}


def _load(name: str, folder: str) -> dict[str, Any]:
    """Load a model, call it, and compare its results."""
    import jitmagic

    calls, wanted = torch.load(f"{folder}/results.pt", weights_only=False)
    started, began = time.perf_counter(), time.process_time()
    loaded = jitmagic.load(f"{folder}/model.jmz")
    wall, seconds, results = time.perf_counter() - started, time.process_time() - began, []
    first = None
    grad = torch.enable_grad if name == "nb_pinn_burgers" else torch.no_grad
    with grad():
        for args, kwargs in calls:
            torch.manual_seed(3)
            started = time.perf_counter()
            results.append(loaded(*args, **kwargs))
            first = time.perf_counter() - started if first is None else first
    same = _leaves(results) == _leaves(wanted)
    size = os.path.getsize(f"{folder}/model.jmz")
    return {"same": same, "load": seconds, "wall": wall, "first_call": first, "bytes": size}


def _leaves(value: Any) -> list[Any]:
    """Return the values in results, tensors as their bytes."""
    from torch.utils._pytree import tree_flatten

    leaves, spec = tree_flatten(_plain(value))
    return [str(spec), *(_bytes(leaf) for leaf in leaves)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return (
        value
        if not hasattr(value, "__dict__") or isinstance(value, torch.Tensor)
        else {key: _plain(one) for key, one in vars(value).items()}
    )


def _bytes(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    flat = leaf.detach().contiguous().view(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return leaf.dtype, tuple(leaf.shape), leaf.stride(), leaf.requires_grad, data


def _child(step: str, name: str, folder: str) -> None:
    try:
        if step == "save":
            _save(name, folder)
            print(json.dumps({}))
        else:
            sys.path.insert(0, str(SUITE))
            if name.startswith("hf_"):
                import transformers.integrations.moe  # operators
                import transformers.utils.generic  # noqa: F401  # classes of results
            print(json.dumps(_load(name, folder)))
    except Exception as error:
        line = traceback.format_exc(limit=-4)
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:600], "trace": line}))


def _run(step: str, name: str, folder: str) -> dict[str, Any]:
    """Run a step in a process of its own, in a folder of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.saved_models", "--child", step, name, folder],
        capture_output=True, text=True, cwd=ROOT if step == "save" else folder,
        env=child_environment(PYTHONPATH=f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
                              JITMAGIC_CACHE_DIR=f"{folder}/cache-{step}", OMP_NUM_THREADS="1"),
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": f"exit code {done.returncode}: {done.stderr[-300:]}"}
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def measure(pattern: str) -> dict[str, dict[str, Any]]:
    """Save and load the models whose names match."""
    sys.path.insert(0, str(SUITE))
    import suite

    results = {}
    for name in suite.names():
        if re.search(pattern, name) is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = _run("save", name, folder)
            step = "save"
            if "error" not in found:
                found, step = _run("load", name, folder), "load"
        results[name] = found
        word = f"{step}: {found['error']}" if "error" in found else (
            f"{'same' if found['same'] else 'DIFFERS'}  load {found['load'] * 1e3:.0f} ms"
            f"  first call {found['first_call'] * 1e3:.0f} ms  {found['bytes'] >> 10} KiB"
        )  # fmt: skip
        print(f"{name:30}{word}", flush=True)
        if os.environ.get("SHOW"):
            print(found.get("trace", ""))
    return results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        return _child(*chosen.child)
    results = measure(chosen.models)
    right = [one for one in results.values() if one.get("same")]
    loads = [one["load"] for one in right]
    print(f"{len(right)} of {len(results)} have the same bytes")
    if loads:
        median = statistics.median(loads)
        print(f"load: median {median * 1e3:.0f} ms, longest {max(loads) * 1e3:.0f} ms")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))
    return None


if __name__ == "__main__":
    main()
