"""At least 200 mutations of state between two calls: none is missed, also when taken back."""

from __future__ import annotations

import pytest

import jitmagic

from . import (
    of_containers,
    of_dictionaries,
    of_modules,
    of_objects,
    of_the_process,
    of_torch,
)
from .mutation import MUTATIONS, Mutation, observe

FAMILIES = (of_containers, of_dictionaries, of_modules, of_objects, of_the_process, of_torch)


@pytest.mark.parametrize("made", MUTATIONS, ids=str)
def test_nothing_is_stale(made: Mutation) -> None:
    eager = observe(made, lambda program: program)
    assert eager[0] != eager[1], "the change shows"
    compiled = observe(made, lambda program: jitmagic.jit(program, backend="eager"))
    assert compiled == eager


def test_names_are_unique_and_many() -> None:
    names = [made.name for made in MUTATIONS]
    assert len(names) == len(set(names)) >= 200
