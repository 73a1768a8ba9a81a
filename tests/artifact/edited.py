"""Runs programs before and after an edit, in processes with one cache on disk.

`python -m tests.artifact.edited` runs all of EDITS: each program before its edit, which leaves an
entry on disk, then after it. Printed: wrong results (an entry of the program before the edit was
used) and how many entries were found when nothing was edited.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import jitmagic
import jitmagic.artifact.library
import jitmagic.compile.pipeline  # else each child imports the compiler

from .edits import EDITS

__all__ = ["outcomes"]


def _module(folder: str, text: str) -> Any:
    path = Path(folder) / "program.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["program"] = module
    spec.loader.exec_module(module)
    return module


def _run(folder: str, text: str) -> dict[str, Any]:
    """Run a program compiled and as eager; return whether results are equal, and what was found."""
    sys.dont_write_bytecode = True
    fn, args = _module(folder, text).make()
    torch.manual_seed(1)
    want = fn(*args)
    torch.manual_seed(1)
    options = {"cache_dir": folder, "persist": True, "keep": "compiled"}
    compiled = jitmagic.jit(fn, backend="eager", options=options)
    got = compiled(*args)
    records = jitmagic.api.handle_of(compiled).journal.records
    stages = [stage.stage for record in records for stage in record.stages]
    same = got.dtype is want.dtype and got.shape == want.shape and torch.equal(got, want)
    return {"same": same, "traced": "trace" in stages, "stages": stages}


def _in_child(folder: str, text: str) -> dict[str, Any]:
    """Run a program in a forked process, in which it may patch torch."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            made = _run(folder, text)
        except BaseException as error:  # the parent reports it
            made = {"same": False, "traced": True, "stages": [repr(error)]}
        os.write(write, json.dumps(made).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return json.loads(data)  # type: ignore[no-any-return]


def outcomes(before: str, after: str) -> tuple[dict[str, Any], ...]:
    """Return what the program does before the edit, unchanged in a second process, and after."""
    with tempfile.TemporaryDirectory() as folder:
        return tuple(_in_child(folder, text) for text in (before, before, after))


def main() -> None:
    """Run all edits, or those of the kinds given."""
    total = wrong = found = 0
    for kind in sys.argv[1:] or EDITS:
        for number, (before, after) in enumerate(EDITS[kind]):
            results = outcomes(before, after)
            total, found = total + 1, found + (not results[1]["traced"])
            if not all(result["same"] for result in results):
                wrong += 1
                print(f"{kind} {number}: {[(r['same'], r['stages']) for r in results]}")
                print(before, after, sep="\n----\n")
    print(f"{total} edits: {wrong} wrong; {found} entries found by the unchanged program")


if __name__ == "__main__":
    main()
