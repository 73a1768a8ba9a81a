"""One case under every system: a Row of what came out."""

from __future__ import annotations

import random
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path

from .case import Case
from .systems import Captured, Eager, Jitmagic, TorchCompile

__all__ = ["Row", "examine"]

System = Eager | Jitmagic | TorchCompile


@dataclass(frozen=True)
class Row:
    """`wrong`: how jitmagic's answer differs from eager's, or what it raised; empty where right."""

    library: str
    title: str
    wrong: str = ""
    ours: Captured = Captured()
    theirs: Captured | None = None  # None: torch.compile was not asked, or raised
    seconds: float = 0.0

    @classmethod
    def read(cls, kept: dict[str, Any]) -> Row:
        """A row out of what `dataclasses.asdict` made of it, and JSON."""
        found = {name: kept[name] and Captured.read(kept[name]) for name in ("ours", "theirs")}
        return cls(**{**kept, **found})

    @property
    def behind(self) -> bool:
        """Whether torch.compile captures without a break what jitmagic breaks."""
        whole = self.theirs is not None and self.theirs.graphs > 0 and not self.theirs.breaks
        return whole and (self.ours.breaks > 0 or not self.ours.graphs)


def examine(case: Case, backend: str = "native", rival: bool = True) -> Row:
    """Eager, then jitmagic, then torch.compile, each from the same seeds."""
    start = time.perf_counter()
    expected = _run(case, Eager())
    ours = Jitmagic(backend)
    wrong = _difference(lambda: _run(case, ours), expected, case.rtol)
    theirs = TorchCompile() if rival else None
    if theirs and _difference(lambda: _run(case, theirs), expected, case.rtol):
        theirs = None
    return Row(
        case.library,
        case.title,
        wrong,
        ours.captured(),
        theirs.captured() if theirs else None,
        time.perf_counter() - start,
    )


def _run(case: Case, system: System) -> Any:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case.program(system.tag)


def _difference(run: Callable[[], Any], expected: Any, rtol: float) -> str:
    """How the answer differs; whatever is raised, by a library too, is a difference."""
    try:
        actual = run()
    except Exception:
        return traceback.format_exc()
    return _unlike(actual, expected, rtol)


def _unlike(actual: Any, expected: Any, rtol: float) -> str:
    """Where two answers differ: each tensor's largest entry says what counts as nothing."""
    pairs, spec = tree_flatten_with_path(expected)
    found, made = tree_flatten(actual)
    if made != spec:
        return f"made of other parts: {made}, not {spec}"
    for (path, wanted), got in zip(pairs, found, strict=True):
        largest = torch.as_tensor(0.0 if wanted is None else wanted).abs().max().item()
        try:
            tolerance = {"rtol": rtol, "atol": rtol / 10 * max(1.0, largest)}
            torch.testing.assert_close(got, wanted, **tolerance, equal_nan=True)
        except (AssertionError, TypeError) as error:
            return f"{keystr(path)}: {error}"
    return ""
