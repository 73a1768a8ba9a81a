"""The C++ toolchain: warm starts, refusals, interrupts."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
import torch

from jitmagic.errors import ToolchainError
from jitmagic.options import make_options
from jitmagic.runtime.store import Store
from jitmagic.runtime.toolchain import build_library, header_folder
from jitmagic.target import find_target

TEXT = 'extern "C" int nothing(void* const*) { return 0; }'


@pytest.fixture
def target():
    found = find_target(torch.device("cpu"), make_options())
    if not found.cxx:
        pytest.skip("no C++ compiler on this machine")
    return found


def test_the_second_build_is_a_cache_hit(target, tmp_path):
    assert not build_library(TEXT, target, Store(tmp_path)).cached
    again = build_library(TEXT, target, Store(tmp_path))
    assert again.cached
    assert again.address("nothing") > 0


def test_a_refusal_carries_the_compilers_words(target, tmp_path):
    with pytest.raises(ToolchainError, match="not_declared"):
        build_library("int x = not_declared;", target, Store(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_broken_compiler_is_a_toolchain_error(target, tmp_path):
    fake = tmp_path / "cxx"
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(ToolchainError, match="exit code 3"):
        build_library(TEXT, replace(target, cxx=str(fake)), Store(tmp_path))


def test_ctrl_c_reaches_the_caller_and_the_next_build_works(target, tmp_path, monkeypatch):
    store = Store(tmp_path)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_library(TEXT, target, store)
    assert not build_library(TEXT, target, store).cached


def test_headers_are_where_generated_code_looks(target):
    assert (header_folder() / "jitmagic" / "vec.h").is_file()
