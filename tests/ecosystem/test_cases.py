"""One or two cases of each library that people train and serve with, where it is installed; `make
ecosystem` runs all cases, beside torch.compile.
"""

from __future__ import annotations

import pytest

from .case import load
from .examine import examine

SHORT = {
    "lightning": (
        "network compiled",
        "the module compiled, and its training_step, which logs",
        "JitCallback",
    ),
    "transformers": ("Trainer, BERT, accumulated", "Trainer, GPT-2, JitCallback"),
    "accelerate": ("loop, compiled before prepare()", "loop, compiled by prepare()"),
    "joblib": (
        "calls in worker processes",
        "calls in threads",
        "a model written to a file, and cached results",
    ),
}


@pytest.mark.parametrize(
    ("library", "title"),
    [(library, title) for library, titles in SHORT.items() for title in titles],
)
def test_a_case_answers_as_eager(library: str, title: str) -> None:
    pytest.importorskip(library)
    (case,) = [case for case in load(library) if case.title == title]
    assert not examine(case, "native", rival=False).wrong
