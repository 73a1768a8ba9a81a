"""Tracebacks out of tagged functions are eager's: the user's frames, each once, nothing of ours."""

from __future__ import annotations

import sys
import traceback

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of


def fails(x, other):
    y = x + 1
    return y @ other


def calls(x, other):
    return fails(x * 2, other)


def prints_and_fails(x, other):
    print("out")
    return x @ other


def raises(x):
    raise ValueError("boom")


def lines(call) -> list[tuple[str, int]]:
    """(function, line) of each frame below the call's."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever eager raises
        call()
    frames = traceback.extract_tb(caught.value.__traceback__)
    return [(frame.name, frame.lineno) for frame in frames[2:]]


@pytest.mark.parametrize("function", [fails, calls, prints_and_fails])
def test_frames_are_eagers(function, capsys):
    tagged = jitmagic.jit(function, backend="eager")
    good, bad = (torch.ones(3), torch.ones(3)), (torch.ones(3), torch.ones(5))
    expected = lines(lambda: function(*bad))
    assert lines(lambda: tagged(*bad)) == expected
    tagged(*good)
    assert lines(lambda: tagged(*bad)) == expected


def test_frames_are_eagers_where_the_function_runs_plainly():
    tagged = jitmagic.jit(raises, backend="eager")
    for _ in range(2):
        assert lines(lambda: tagged(1)) == lines(lambda: raises(1))


def test_a_refused_graph_break_shows_nothing_of_the_compile(capsys):
    tagged = jitmagic.jit(prints_and_fails, fullgraph=True)
    with pytest.raises(jitmagic.Unsupported):
        tagged(torch.ones(3), torch.ones(3))
    assert lines(lambda: tagged(torch.ones(3), torch.ones(3))) == []


def test_an_interrupted_compile_shows_nothing_of_the_compile():
    def interrupted(graph, inputs):
        raise KeyboardInterrupt

    tagged = jitmagic.jit(fails, backend=interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        tagged(torch.ones(3), torch.ones(3))
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 1
    assert sys.exc_info() == (None, None, None)


COUNT = 0


def counts(x):
    global COUNT
    COUNT += 1
    return x + 1


def test_code_objects_in_tracebacks_can_be_hashed():
    tagged = jitmagic.jit(counts, backend="eager")
    tagged(torch.ones(2))
    for entry in handle_of(tagged).dispatcher.entries:
        assert isinstance(hash(entry.run.__code__), int)


def test_helpers_defined_anew_do_not_use_up_the_limit(recwarn):
    namespace: dict = {"jitmagic": jitmagic}
    exec("def outer(x):\n    return helper(x) * 2", namespace)
    tagged = jitmagic.jit(namespace["outer"], backend="eager")
    for tag in ("", "\nhelper = jitmagic.jit(helper)"):
        for number in range(12):
            exec(f"def helper(x):\n    return x + {number}{tag}", namespace)
            assert tagged(torch.ones(1)).item() == 2 * (1 + number)
    assert not [w for w in recwarn if issubclass(w.category, jitmagic.RecompileWarning)]
