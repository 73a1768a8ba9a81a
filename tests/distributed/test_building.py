"""Ranks that need the same kernels compile each of them once."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

from .building import counting_compiler
from .launching import launch

COMPILER = shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
CACHES = ("one", "one", "two")  # folders of the ranks


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("building")
    assert COMPILER is not None
    shared = {"JITMAGIC_CXX": str(counting_compiler(folder, COMPILER))}
    environments = [
        {**shared, "JITMAGIC_CACHE_DIR": str(folder / cache), "RANK_OF_TEST": str(rank)}
        for rank, cache in enumerate(CACHES)
    ]
    ended = launch("tests.distributed.building", [], folder, 3, environments=environments)
    assert [one.status for one in ended] == [0, 0, 0], [one.error for one in ended]
    return [one.answer for one in ended]


def test_every_rank_has_the_kernels(answers: list[Any]) -> None:
    kernels = [one["kernels"] for one in answers]
    assert kernels[0] == kernels[1] == kernels[2]
    assert min(kernels[0]) > 0


def test_ranks_that_begin_together_compile_each_text_once(answers: list[Any]) -> None:
    texts = [text for one in answers for text in one["texts"][0]]
    assert len(texts) == len({*texts}) > 0


def test_later_ranks_compile_nothing_with_the_same_cache_folder_or_another(
    answers: list[Any],
) -> None:
    assert answers[0]["texts"][1]
    assert [one["texts"][1] for one in answers[1:]] == [[], []]
