"""Every kind of damage to the kernel cache and the toolchain: the call is right, on the fastest
tier that can work, and the next process finds a cache that is whole and has nothing to say.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.devices import cpu
from jitmagic.options import make_options
from jitmagic.records import COMPILED
from jitmagic.runtime.store import open_store
from tests.processes import child_environment, run_forked

from .damage import KINDS, Place, as_options

X = torch.linspace(-2, 2, 96).reshape(4, 24)


def chain(x: Tensor) -> Tensor:
    return torch.relu(x * 3 + 2).sum(-1)


@dataclass
class Call:
    """The outcome of one call of a freshly tagged function."""

    tier: str
    is_cached: bool
    warnings: list[str]


def call(options: Any) -> Call:
    """Reset the state to that of a new process."""
    open_store.cache_clear()
    run = jitmagic.jit(chain, options=options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(X)
    torch.testing.assert_close(result, chain(X))
    (record,) = handle_of(run).journal
    tier, is_cached = "aten" if record.outcome == COMPILED else "eager", False
    for stage in record.stages:
        if stage.stage.endswith("render") and stage.result:
            language = stage.result[1].language
        elif stage.stage.endswith("load") and stage.result:
            tier, is_cached = language, stage.result.cached
    return Call(tier, is_cached, [str(one.message) for one in caught])


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the function's kernels."""
    if not cpu._find_cxx(None)[0]:
        pytest.skip("no C++ compiler on this machine")
    folder = tmp_path_factory.mktemp("good") / "cache"
    assert call(make_options({"cache_dir": str(folder)})).tier == "cpp"
    return folder


@pytest.fixture(scope="module")
def mended() -> list[tuple[str, str]]:
    """(kind, cache folder) of what was harmed and used once."""
    return []


@pytest.mark.parametrize("name", KINDS)
def test_damage(name: str, good: Path, mended: list[tuple[str, str]], tmp_path: Path) -> None:
    kind = KINDS[name]
    shutil.copytree(good, tmp_path / "cache")
    with ExitStack() as undo, pytest.MonkeyPatch.context() as patch:
        place = Place(tmp_path / "cache", patch, undo)
        kind.harm(place)
        first = call(as_options(place))
        second = call(as_options(place)) if kind.tier == "cpp" and not kind.says else None
    assert first.tier == kind.tier, first.warnings
    text = "\n".join(first.warnings)
    assert bool(re.search(kind.says, text)) if kind.says else not text, text
    assert len(set(first.warnings)) <= 2, "said once"
    if second is not None:  # in the same circumstances: mended
        assert (second.tier, second.is_cached, second.warnings) == ("cpp", True, [])
    if not kind.stays:
        mended.append((name, str(tmp_path / "cache")))


NEXT_PROCESS = """
    import json, os, sys, warnings
    import torch, jitmagic
    from jitmagic.api import handle_of

    X = torch.linspace(-2, 2, 96).reshape(4, 24)
    {source}
    for name, folder in json.loads(sys.argv[1]):
        for turn in (1, 2):
            run = jitmagic.jit(chain, options=dict(cache_dir=folder))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                right = bool(torch.allclose(run(X), torch.relu(X * 3 + 2).sum(-1)))
            (record,) = handle_of(run).journal
        rest = [n for n in os.listdir(folder + "/kernels") if n.startswith("build-")]
        facts = right, record.kernels, record.cache_hits, [str(w.message) for w in caught], rest
        print(json.dumps([name, *facts]))
"""


def test_next_process_is_healthy_after_repair(good: Path, mended: list[tuple[str, str]]) -> None:
    """One process for all folders that were harmed; the good one among them."""
    source = "def chain(x): return torch.relu(x * 3 + 2).sum(-1)"
    folders = json.dumps([("good", str(good)), *mended])
    done = run_forked(NEXT_PROCESS.replace("{source}", source), folders)
    assert done.returncode == 0, done.stderr
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in facts] == ["good", *(name for name, _ in mended)]
    sick = [fact for fact in facts if fact[1:] != [True, 1, 1, [], []]]
    assert not sick, sick


# ------------------------------------------------------------------------------ several processes

WRITER = """
    import sys
    from jitmagic.runtime.store import open_store

    store, data = open_store(sys.argv[1]), bytes(range(256)) * 4000
    print("ready", flush=True)
    while True:
        for n in range(20):
            store.put(f"key{n}", ".so", data + bytes([n]))
            found = store.get(f"key{n}", ".so")
            assert found == data + bytes([n]), "a reader saw something else"
"""


def test_processes_that_share_a_folder_and_are_killed(tmp_path: Path) -> None:
    """Each is killed somewhere in a write; what is left is whole or counts as absent."""
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children = [subprocess.Popen(command, env=child_environment(), **pipes) for _ in range(3)]
    try:
        for child in children:
            assert child.stdout.readline() == b"ready\n", child.stderr.read().decode()
        seen = 0
        store = open_store(str(tmp_path))
        while seen < 100:
            found = store.get(f"key{seen % 20}", ".so")
            seen += found is not None
            assert found is None or len(found) == 256 * 4000 + 1
        assert all(child.poll() is None for child in children), "no reader saw anything else"
    finally:
        for child in children:
            child.kill()
            child.communicate()
    with store.scratch() as mine:
        left = [path for path in store.folder.glob("build-*") if path != mine]
    assert not any((path / "lock").exists() for path in left), "killed before it had a lock"
    assert all(store.get(f"key{n}", ".so") is not None for n in range(20))
