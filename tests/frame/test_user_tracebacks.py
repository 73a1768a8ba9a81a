"""Tracebacks of tagged functions equal eager's: each user frame once, no frame of jitmagic."""

from __future__ import annotations

import gc
import inspect
import sys
import traceback
import warnings

import pytest
import torch
from torch.overrides import TorchFunctionMode

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
def test_traceback_frames_equal_eagers(function, capsys):
    tagged = jitmagic.jit(function, backend="eager")
    good, bad = (torch.ones(3), torch.ones(3)), (torch.ones(3), torch.ones(5))
    expected = lines(lambda: function(*bad))
    assert lines(lambda: tagged(*bad)) == expected
    tagged(*good)
    assert lines(lambda: tagged(*bad)) == expected


def test_traceback_frames_equal_eagers_when_running_as_plain_python():
    tagged = jitmagic.jit(raises, backend="eager")
    for _ in range(2):
        assert lines(lambda: tagged(1)) == lines(lambda: raises(1))


def stack_seen(x):
    print([(each.function, each.lineno) for each in inspect.stack()[:3]])
    return x + 1


def warns_of_its_caller(x):
    warnings.warn("careful", stacklevel=2)
    return x + 1


def warns_further_up(x):
    y = warns_of_its_caller(x)
    warnings.warn("careful", stacklevel=3)
    return stack_seen(y) * 2


def warnings_and_output(function, capsys) -> tuple[list[tuple[str, int, str]], str]:
    """Return the locations of a call's warnings, and what it prints."""

    def caller():
        return function(torch.ones(3))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        caller()
    places = [(each.filename, each.lineno, str(each.message)) for each in caught]
    return places, capsys.readouterr().out


class Watching(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("function", [stack_seen, warns_of_its_caller, warns_further_up])
def test_stack_walks_see_eagers_frames(function, capsys):
    expected = warnings_and_output(function, capsys)
    tagged = jitmagic.jit(function, backend="eager")
    with Watching():  # every operation is somebody's to see: the original runs
        assert warnings_and_output(tagged, capsys) == expected
    for _ in range(3):
        assert warnings_and_output(tagged, capsys) == expected


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


def prints_and_raises(x):
    y = x * 2
    print("out")
    if y.sum() > 0:
        raise ValueError("boom")
    return y


def prints_in_a_loop(x, *rest, limit=2, **named):
    for i in range(4):
        x = x + 1
        print("out", i)
        if i == limit:
            raise ValueError(named)
    return x, rest


def handles_and_raises(x):
    try:
        y = x + 1
        print("out")
        raise ValueError("first")
    except ValueError as error:
        z = x + 2
        raise KeyError("second") from error
    return y + z


def inside_a_with(x):
    with torch.no_grad():
        y = x + 1
        print("out")
        z = y + 1
        raise ValueError(z.shape)


def in_a_comprehension(x):
    print("out")
    return [raises(x + k) for k in range(2)]


def in_a_closure(x):
    n = 3

    def inner(a):
        print("out")
        return raises(a + n)

    return inner(x + 1)


class Breaking(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        print("out")
        return y @ torch.ones(7, 7)


class RaisesBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("boom")


CALLERS = ("variables", "<lambda>")


def variables(call) -> list[tuple[str, list[str], set[str]]]:
    """Return (function, parameters, variables) of each user frame below the call's and of the
    chained errors'.
    """
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever eager raises
        call()
    error, found = caught.value, []
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename == __file__ and frame.f_code.co_name not in CALLERS:
                args, varargs, varkw, values = inspect.getargvalues(frame)
                names = [name for name in (*args, varargs, varkw) if name]
                found.append((frame.f_code.co_qualname, names, set(values)))
        error = error.__cause__ or error.__context__
    return found


BREAKING = [
    prints_and_fails,
    prints_and_raises,
    prints_in_a_loop,
    handles_and_raises,
    inside_a_with,
    in_a_comprehension,
    in_a_closure,
]


@pytest.mark.parametrize("function", BREAKING)
def test_frames_have_the_users_variables_only(function, capsys):
    """Extra parameters of a resume function are hidden; dead variables may be gone."""
    tagged, x = jitmagic.jit(function, backend="eager"), torch.ones(3)
    args = (x, torch.ones(5)) if function is prints_and_fails else (x,)
    expected, where = variables(lambda: function(*args)), lines(lambda: function(*args))
    for _ in range(3):
        told = variables(lambda: tagged(*args))
        assert [name for name, *_ in told] == [name for name, *_ in expected]
        for (_, names, values), (_, plain_names, plain_values) in zip(told, expected, strict=True):
            assert [name for name in plain_names if name in names] == names
            assert values <= plain_values
            assert values.issuperset(names)
        assert lines(lambda: tagged(*args)) == where


def test_frames_of_a_module_have_the_users_variables_only(capsys):
    tagged, x = jitmagic.jit(Breaking(), backend="eager"), torch.ones(3)
    for _ in range(3):
        (told,) = variables(lambda: tagged(x))
        assert told[0] == "Breaking.forward"
        assert set(told[1]) <= {"self", "x"}
        assert told[2] <= {"self", "x", "y"}


def test_traceback_frames_of_a_backward_equal_eagers():
    tagged = jitmagic.jit(lambda x: RaisesBackwards.apply(x).sum())
    for _ in range(3):
        loss = tagged(torch.ones(3, requires_grad=True))
        assert lines(loss.backward)[-1][0] == "backward"
        loss = tagged(torch.ones(3, requires_grad=True))
        (told,) = variables(loss.backward)
        assert told == ("RaisesBackwards.backward", ["ctx", "g"], {"ctx", "g"})


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


@pytest.mark.parametrize("collects", [True, False])
def test_redefined_helpers_do_not_use_up_the_recompile_limit(collects, recwarn, request):
    if not collects:
        gc.disable()
        request.addfinalizer(gc.enable)
    namespace: dict = {"jitmagic": jitmagic}
    exec("def outer(x):\n    return helper(x) * 2", namespace)
    tagged = jitmagic.jit(namespace["outer"], backend="eager")
    for tag in ("", "\nhelper = jitmagic.jit(helper)"):
        for number in range(12):
            exec(f"def helper(x):\n    return x + {number}{tag}", namespace)
            assert tagged(torch.ones(1)).item() == 2 * (1 + number)
    assert not [w for w in recwarn if issubclass(w.category, jitmagic.RecompileWarning)]
