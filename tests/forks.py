"""A process that has imported a module, and runs each script in a fork of itself.

In: the module's name, and requests, a line of JSON each (code, arguments, variables, folder, files
for the output). Out: a line with the exit status. A fork has compiled nothing and started no
thread; its interpreter ends as any does, since it returns from here. What a test wants to see
imported besides, or set before that, needs a process of its own: `processes.run_python`.
`processes.run_forked` is the other end.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from types import ModuleType
from typing import Any


def become(request: dict[str, Any]) -> None:
    """The process that `python -c` would be."""
    sys.stdout.flush()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [os.open(os.devnull, os.O_RDONLY)]
    files += [os.open(request[name], flags, 0o600) for name in ("stdout", "stderr")]
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv, sys.path[0] = ["-c", *request["arguments"]], ""


def freeze() -> None:
    """Collections of a fork, as at its end, walk what it made: 0.3 s of processor time, not 0.9."""
    gc.collect()
    gc.freeze()
    gc.enable()


def serve() -> None:
    gc.disable()  # an import leaves next to nothing to collect
    importlib.import_module(sys.argv[1])
    freeze()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            become(request)
            module = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(request["code"], "<string>", "exec"), vars(module))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
