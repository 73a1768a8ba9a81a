"""What share of torch's operators is one graph: each sample with fullgraph=True, and its gradient.

Comes in: the options of `python -m tests.operators --whole`. Goes out: why operators break, by how
many, and the share of those all of whose samples are one graph. What eager refuses does not count,
and what hangs on data (by the tags of the operators that eager calls) is counted apart. Results are
compared by the other sweeps.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import jitmagic

from .trials import OPERATORS, Trial, copied, name_of, trials

__all__ = ["backend_of", "hangs_on_data", "shortened", "whole_graphs", "why_no_graph"]


def whole_graphs(options: argparse.Namespace) -> int:
    """Run it; the exit code is 0 where at least 99 % are whole."""
    warnings.filterwarnings("ignore")
    # The samples of random operators set the seed around the call, which is no part of it.
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    shard, of = map(int, options.shard.split("/"))
    tried: set[str] = set()
    broken: dict[str, dict[str, str]] = defaultdict(dict)  # reason -> operator -> a sample
    apart: dict[str, str] = {}  # operator -> a sample whose result hangs on data
    until = time.monotonic() + (options.seconds or math.inf)
    for op in OPERATORS[shard::of]:
        if not name_of(op).startswith(options.only) or time.monotonic() > until:
            continue
        for name in options.dtypes.split(","):
            for trial in trials(op, "call", getattr(torch, name), options.samples, options.device):
                reason = why_no_graph(trial, options.tier)
                jitmagic.reset()
                if reason == "refused by eager":
                    continue
                if reason is not None and hangs_on_data(trial):
                    apart.setdefault(name_of(op), trial.label)
                    continue
                tried.add(name_of(op))
                if reason is not None:
                    broken[reason].setdefault(name_of(op), trial.label)
    return _told(tried, broken, apart, options.json)


def _told(
    tried: set[str], broken: dict[str, dict[str, str]], apart: dict[str, str], path: str
) -> int:
    for reason, samples in sorted(broken.items(), key=lambda row: -len(row[1])):
        print(f"{len(samples):4} {reason}\n     {', '.join(sorted(samples))}")
    names = {name for samples in broken.values() for name in samples}
    whole = len(tried) - len(names)
    share = whole / max(len(tried), 1)
    print(f"{whole} of {len(tried)} operators are one graph in every sample ({share:.1%})")
    if apart:
        everything, left = tried | apart.keys(), names | apart.keys()
        share_of_all = 1 - len(left) / len(everything)
        print(
            f"{len(everything) - len(left)} of {len(everything)} with those whose results hang on"
            f" data ({share_of_all:.1%})"
        )
        print(f"{len(apart)} have samples whose results hang on data: {', '.join(sorted(apart))}")
    if path:
        told = {"tried": sorted(tried), "broken": broken, "apart": apart}
        Path(path).write_text(json.dumps(told, indent=1))
    return 0 if share >= 0.99 else 1


def why_no_graph(trial: Trial, tier: str) -> str | None:
    """The first line of the refusal, without what differs from sample to sample."""
    try:
        _run(trial.call, trial)
    except Exception:
        return "refused by eager"
    backend = backend_of(tier)
    compiled = jitmagic.jit(lambda *args: trial.call(*args), fullgraph=True, backend=backend)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _run(compiled, trial)
        except Exception as error:
            return shortened(f"{type(error).__name__}: {error}")
    told = [str(w.message) for w in caught if issubclass(w.category, jitmagic.FallbackWarning)]
    return shortened(told[0]) if told else None


def backend_of(tier: str) -> str:
    """Without kernels of our own where another tier than C++ is named: no compiler has to run."""
    return "native" if tier == "cpp" else "aot_eager"


class _Tags(TorchDispatchMode):
    """The tags of all operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.Tag] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.update(func.tags)
        return func(*args, **(kwargs or {}))


def hangs_on_data(trial: Trial) -> bool:
    """Whether the size or place of eager's result depends on data, or it is a Python value of data:
    torch.compile has no graph for it either. A number that is read to check it is no such thing.
    """
    arguments = copied(trial.arguments)
    with _Tags() as tags:
        made = tree_leaves(trial.call(*arguments))
    if torch.Tag.dynamic_output_shape in tags.found or _sized_by_integers(trial, made):
        return True
    given = {t.untyped_storage()._cdata for t in _strided(arguments)}
    placed = all(t.untyped_storage()._cdata in given for t in _strided(made))
    return torch.Tag.data_dependent_output in tags.found and placed


def _sized_by_integers(trial: Trial, made: list[Any]) -> bool:
    """Whether results have other sizes where the tensors of integers hold zeros: some operators
    read them without telling by a tag.
    """
    try:
        other = tree_leaves(trial.call(*tree_map(_zeroed, copied(trial.arguments))))
    except Exception:
        return False
    shapes = ([t.shape for t in values if isinstance(t, Tensor)] for values in (made, other))
    return next(shapes) != next(shapes)


def _zeroed(value: Any) -> Any:
    whole = isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64)
    return torch.zeros_like(value) if whole else value


def _strided(value: Any) -> Iterator[Tensor]:
    return (t for t in _tensors(value) if t.layout is torch.strided)


def shortened(text: str) -> str:
    line = text.partition("\n")[0]
    return re.sub(r"\b\d+\b|0x[0-9a-f]+|\[[^]]*\]", "_", line)[:160]


def _run(call: Any, trial: Trial) -> None:
    arguments = copied(trial.arguments)
    torch.manual_seed(7)
    results = list(_tensors(call(*arguments)))
    leaves = [t for t in _tensors(arguments) if t.requires_grad]
    ends = [t for t in results if t.requires_grad and t.layout is torch.strided]
    if trial.grads and ends and leaves:
        seeds = [torch.ones_like(t) for t in ends]
        torch.autograd.grad(ends, leaves, seeds, allow_unused=True)


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
