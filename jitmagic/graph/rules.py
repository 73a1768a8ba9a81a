"""Ordered tables of rules: each rule is asked in turn until one answers.

A rule is a function that returns an answer, or None to leave the question to the rules after it; a
rule that only checks something raises or returns None. A table lists all special cases of one
question in the order in which they are asked, with a comment where the order matters.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Generic, NamedTuple, TypeVar

from ..torch_types import AnyFunction

__all__ = ["Rule", "Rules"]

T = TypeVar("T")


class Rule(NamedTuple):
    """`act` answers questions about the names in `names`; None: about every name."""

    act: AnyFunction
    names: Container[str] | None = None


class Rules(Generic[T]):
    """Rules in the order in which they are asked; a bare function is a rule for every name."""

    __slots__ = ("_acts", "rules")

    def __init__(self, *rules: Rule | Callable[..., T | None]) -> None:
        self.rules = tuple(rule if isinstance(rule, Rule) else Rule(rule) for rule in rules)
        self._acts: dict[str, tuple[Callable[..., T | None], ...]] = {}

    def ask(self, *question: object, about: str = "") -> T | None:
        """Return the first answer to a question about a name, or None."""
        acts = self._acts.get(about)
        if acts is None:  # the rules of a name are selected once: `ask` runs for every operation
            acts = self._acts[about] = tuple(
                rule.act for rule in self.rules if rule.names is None or about in rule.names
            )
        for act in acts:
            if (answer := act(*question)) is not None:
                return answer
        return None

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the rules in the order in which they are asked."""
        return tuple(rule.act.__name__.strip("_") for rule in self.rules)
