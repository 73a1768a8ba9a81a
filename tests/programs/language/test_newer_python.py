"""Programs in the syntax and with the standard library of newer Pythons, as text."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import pytest
import torch

import jitmagic

_PRELUDE = """
    import functools, operator, jitmagic
    def add(*args): return args
    filled = functools.partial(add, functools.Placeholder, 2)
    class Static:
        @staticmethod
        def __enter__(): return 5
        @staticmethod
        def __exit__(*error): return error[0] is KeyError
    """

PROGRAMS: dict[str, str] = {
    "template_string": """
        def fn(x):
            text = t"size {x.shape[0]!r:>3}"
            return x + 1, text.strings, [part.value for part in text.interpolations]
        """,
    "placeholder_of_a_partial_object": """
        def fn(x):
            made = functools.partial(add, functools.Placeholder, 2)
            return made(x, 3), filled(x), functools.partial(filled, 1)(x)
        """,
    "partial_object_as_a_method": """
        class Holder:
            call = functools.partial(add, 1)
        def fn(x):
            return len(Holder().call(x)), len(Holder.call(x)), x + 1
        """,
    "strict_map": """
        def fn(x):
            y = list(map(operator.add, [x, 1], [2, x], strict=True))
            return y, list(map(operator.add, [1, 2], [3], strict=True))
        """,
    "truth_of_not_implemented": """
        def fn(x):
            try:
                return x + 1 if NotImplemented else x
            except TypeError as error:
                return x * 2, str(error)
        """,
    "break_in_a_with_block": """
        def fn(x):
            with Static() as five:
                x = x + five
                jitmagic.graph_break()
                with Static():
                    x = x * 2
                    jitmagic.graph_break()
                    raise KeyError
            return x
        """,
    "loop_left_to_python_within_a_with_block": """
        def fn(x):
            for i in range(6):
                with Static() as five:
                    x = x + i
                    print(end="")
                    if x.sum() > five:
                        break
            return x, i
        """,
    "deferred_annotations": """
        def fn(x):
            def plus(a: Undefined, b: int = 2) -> "text":
                return a + b
            class Record:
                a: int = 3
                b: Undefined
            jitmagic.graph_break()
            return plus(x), Record().a, plus.__annotate__(4)["b"] if False else 0
        """,
    "function_with_deferred_annotations_is_returned": """
        def fn(x):
            @functools.wraps(add)
            def plus(a: int, b: Undefined = 2):
                return a + b
            def times(a: int): return a * 2
            return plus(x), times(x), times.__annotations__, plus.__annotations__
        """,
}


def outcome(fn: Any, x: torch.Tensor) -> Any:
    try:
        return fn(x)
    except Exception as error:
        return type(error), str(error)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="syntax and library of Python 3.14")
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    namespace: dict[str, Any] = {"__name__": __name__}
    for text in (_PRELUDE, PROGRAMS[name]):
        code = compile(textwrap.dedent(text), f"<{name}>", "exec", dont_inherit=True)
        exec(code, namespace)
    x = torch.arange(3.0)
    wanted = outcome(namespace["fn"], x)
    fast = jitmagic.jit(namespace["fn"])
    for _ in range(3):
        assert same(outcome(fast, x.clone()), wanted)
