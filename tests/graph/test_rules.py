"""Ordered tables of rules: the first answer counts, and a rule may be limited to some names."""

from __future__ import annotations

import pytest

from jitmagic.graph.rules import Rule, Rules


def _half(number: int) -> int | None:
    return number // 2 if number % 2 == 0 else None


def _third(number: int) -> int | None:
    return number // 3 if number % 3 == 0 else None


def _refuse(number: int) -> None:
    raise ValueError(number)


def test_the_first_rule_that_answers_decides() -> None:
    rules: Rules[int] = Rules(_half, _third)
    assert [rules.ask(number) for number in (6, 9, 7, 0)] == [3, 3, None, 0]
    assert Rules(_third, _half).ask(6) == 2


def test_a_rule_is_asked_only_about_its_names() -> None:
    rules: Rules[int] = Rules(Rule(_refuse, {"odd"}), _half)
    assert rules.ask(4, about="even") == rules.ask(4) == 2
    with pytest.raises(ValueError, match="4"):
        rules.ask(4, about="odd")


def test_a_table_shows_its_order() -> None:
    assert Rules(_half, Rule(_third, {"odd"})).order == ("half", "third")
