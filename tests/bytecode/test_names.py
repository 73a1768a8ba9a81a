"""Variable names that no compiler makes, but tools do: pytest's asserts use "@py_assert1"."""

from __future__ import annotations

from jitmagic.bytecode import assemble, decode


def original(a, b):
    total = a + b
    return total, a, b


def test_names_with_an_at_sign_survive():
    code = original.__code__.replace(co_varnames=("@a", "@b", "@total"))
    again = assemble(decode(code))
    assert again.co_varnames == code.co_varnames
    first, second = (decode(one).instructions for one in (code, again))  # 3.14 borrows in `code`
    assert [(i.op, i.arg) for i in second] == [(i.op, i.arg) for i in first]
