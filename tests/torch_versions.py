"""python -m tests.torch_versions PYTHON: what this torch has that the torch of PYTHON has not.

PYTHON is the interpreter of another environment. The lines name operators whose schema is new,
gone or another one, public names, dtypes and entries of torch's database of operator samples.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch.testing._internal.common_methods_invocations import op_db

NAMESPACES = (torch, torch.Tensor, torch.nn, torch.nn.functional, torch.linalg, torch.special,
              torch.fft, torch.optim)  # fmt: skip


def surface() -> dict[str, dict[str, str]]:
    """Return for each kind what this torch has, by name."""
    schemas = torch._C._jit_get_all_schemas()
    found = {"operator": {f"{s.name}.{s.overload_name}": str(s) for s in schemas}}
    for space in NAMESPACES:
        found[space.__name__] = {name: name for name in dir(space) if not name.startswith("_")}
    found["samples"] = {f"{op.name} {op.variant_test_name}".strip(): op.name for op in op_db}
    return found


def differences(new: dict[str, dict[str, str]], old: dict[str, dict[str, str]]) -> list[str]:
    lines = []
    for kind, names in new.items():
        before = old[kind]
        lines += [f"new {kind}: {names[name]}" for name in sorted(names.keys() - before.keys())]
        lines += [f"gone {kind}: {before[name]}" for name in sorted(before.keys() - names.keys())]
        both = sorted(names.keys() & before.keys())
        lines += [
            f"changed {kind}: {before[n]}\n    is now {names[n]}"
            for n in both
            if names[n] != before[n]
        ]
    return lines


def main() -> None:
    if sys.argv[1:] == ["--json"]:
        print(json.dumps(surface()))
        return
    command = [sys.argv[1], str(Path(__file__).resolve()), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print("\n".join(differences(surface(), json.loads(done.stdout.splitlines()[-1]))))


if __name__ == "__main__":
    main()
