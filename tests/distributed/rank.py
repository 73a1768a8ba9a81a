"""One of the two processes: runs the programs whose titles it reads, a line each.

    python -m tests.distributed.rank RANK FOLDER SYSTEM MODULE ...

It prints a line of JSON for each program: how the answer differs from eager's, what was captured,
and the collectives that were started, in order.
"""

from __future__ import annotations

import json
import random
import sys
import traceback
import warnings
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._pytree import tree_flatten, tree_map

from jitmagic.frame.agreement import varying
from tests.ecosystem.systems import Eager, Jitmagic, TorchCompile
from tests.workers import serve

from .corpus import Program, World, load, local
from .runner import ANSWER, READY, RECORDED

# Counts must not depend on when notes of the other rank, or of earlier programs, are read.
varying.board = lambda: None

SYSTEMS = {"jitmagic": Jitmagic, "torch": TorchCompile, "eager": Eager}
MIXED = "mixed"  # jitmagic on rank 0, eager on the other one
JOINED = "joined"  # jitmagic, with small collectives joined
AUTOCAST = "autocast"  # jitmagic, and eager beside it, under autocast to bfloat16
System = Eager | Jitmagic | TorchCompile
Collective = tuple[str, list[Any], list[Any]]


def _started() -> list[dict[str, Any]]:
    """Return what torch's flight recorder has of the collectives of this process."""
    return json.loads(c10d._dump_fr_trace_json()).get("entries", [])


def _observe(program: Program, system: System, world: World) -> tuple[Any, list[Collective]]:
    """Return the answer of one run, and the name, sizes and types of each collective."""
    random.seed(0)
    torch.manual_seed(0)
    before = max((entry["record_id"] for entry in _started()), default=-1)
    answer = tree_map(local, program.run(system.tag, world))
    started = [entry for entry in _started() if entry["record_id"] > before]
    assert len(started) < RECORDED, "the flight recorder has forgotten the first collectives"
    return answer, [
        (entry["profiling_name"], entry["input_sizes"], entry["input_dtypes"]) for entry in started
    ]


def _difference(actual: Any, expected: Any, program: Program) -> str:
    """Return how two answers differ, or an empty text."""
    (found, made), (wanted, form) = tree_flatten(actual), tree_flatten(expected)
    if made != form:
        return f"a tree of another form: {made}, not {form}"
    texts = [[leaf for leaf in leaves if isinstance(leaf, str)] for leaves in (found, wanted)]
    if texts[0] != texts[1]:
        return f"texts are {texts[0]}, not {texts[1]}"
    found, wanted = ([x for x in leaves if not isinstance(x, str)] for leaves in (found, wanted))
    tolerance = {"rtol": program.rtol, "atol": program.atol}
    try:
        torch.testing.assert_close(found, wanted, **tolerance, equal_nan=True)
    except (AssertionError, TypeError) as error:
        return str(error)
    return ""


def _reordered(actual: list[Collective], expected: list[Collective]) -> str:
    """Return the first collective that eager does not start there, or an empty text."""
    for place in range(max(len(actual), len(expected))):
        found, wanted = actual[place : place + 1], expected[place : place + 1]
        if found != wanted:
            return f"collective {place} is {found}, not {wanted}"
    return ""


def examine(program: Program, system_name: str, world: World) -> dict[str, Any]:
    """Run a program as eager and under a system; what either raises is an answer too."""
    found: dict[str, Any] = {"wrong": "", "raised": "", "reordered": "", "order": [], "of_eager": 0}
    cast = torch.autocast("cpu", torch.bfloat16, system_name == AUTOCAST, cache_enabled=False)
    if system_name == MIXED:
        system_name = "eager" if world.rank else "jitmagic"
    system = SYSTEMS.get(system_name, Jitmagic)()
    if isinstance(system, Jitmagic) and system_name == JOINED:
        system.keywords["options"] = {"collectives": "joined"}
    try:
        with cast:
            expected, order = _observe(program, Eager(), world)
            actual, found["order"] = _observe(program, system, world)
        found["of_eager"] = len(order)
        found["wrong"] = _difference(actual, expected, program)
        found["reordered"] = _reordered(found["order"], order)
    except Exception:
        found["raised"] = traceback.format_exc()
    return {**found, **asdict(system.captured())}


def main() -> None:
    rank, folder, system, *modules = int(sys.argv[1]), *sys.argv[2:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    world, programs = World(rank, init_device_mesh("cpu", (2,))), load(modules)

    print(READY, flush=True)

    def handle(title: str) -> None:
        answer = examine(programs[title], system, world)
        print("\n" + ANSWER + json.dumps(answer), flush=True)

    serve(handle)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
