"""joblib: calls in worker processes and threads, a model written to a file, cached results."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import joblib
import torch
from joblib import Parallel, delayed
from torch import nn

from .case import Tag, case


def _scores(tag: Tag, **settings: Any) -> Any:
    weight = torch.randn(6, 3)

    @tag
    def score(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).softmax(-1)

    xs = [torch.randn(4, 6) for _ in range(5)]
    answers = Parallel(n_jobs=2, **settings)(delayed(score)(x) for x in xs)
    return [*answers, score(xs[0])]


@case("joblib", "calls in worker processes")
def processes(tag: Tag) -> Any:
    return _scores(tag, backend="loky")


@case("joblib", "calls in threads")
def threads(tag: Tag) -> Any:
    return _scores(tag, backend="threading")


@case("joblib", "a model written to a file, and cached results")
def kept(tag: Tag) -> Any:
    model = tag(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)).eval())
    x = torch.randn(4, 6)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.joblib")
        joblib.dump(model, path)
        again = joblib.load(path)
        cached = joblib.Memory(folder, verbose=0).cache(tag(lambda x: x.sin() * 2))
        return [model(x), again(x), again.state_dict(), cached(x), cached(x)]
