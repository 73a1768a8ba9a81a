"""Hooks put on the leaf of test_check.py's world."""

from __future__ import annotations

from typing import Any

__all__ = ["HOOKS"]


def hook_behind(world: Any) -> None:
    if world.cfg["leaf"].is_leaf:  # another mutation may have come before
        world.cfg["leaf"].register_post_accumulate_grad_hook(id)


def hook_accumulator(world: Any) -> None:
    leaf = world.cfg["leaf"]
    node = leaf.expand_as(leaf).grad_fn.next_functions[0][0]
    node.register_hook(lambda *given: None)
    world.accumulator = node  # the leaf holds it weakly


HOOKS = {
    "hook of a leaf": lambda w: w.cfg["leaf"].register_hook(lambda g: g),
    "hook behind a leaf": hook_behind,
    "hook of an accumulator": hook_accumulator,
}
