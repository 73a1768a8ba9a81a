"""The registry of handlers: one for each callable; a call that a row does not take is a break."""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import itertools
import re
import types
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.trace.builtins import registry
from jitmagic.trace.builtins.registry import handles


def test_a_callable_has_one_handler() -> None:
    with pytest.raises(AssertionError, match="two handlers"):
        handles(len)(lambda machine, args, kwargs: args[0])


_WRONG_CALLS: tuple[Callable[[], Any], ...] = (
    lambda: len(),  # type: ignore[call-arg]
    lambda: [].append(1, 2),  # type: ignore[call-arg]
    lambda: torch.get_num_threads(3),  # type: ignore[call-arg]
    lambda: getattr(len, "absent", 1, 2),  # type: ignore[call-overload]
    lambda: next(iter([]), 1, 2),  # type: ignore[call-overload]
    lambda: functools.reduce(max, [1], 1, 2),  # type: ignore[call-overload]
    lambda: collections.deque([1]).index(1, 0, 1, 2),  # type: ignore[call-arg]
)


def _calls_rows_wrongly(x: Tensor) -> tuple[Tensor, list[str]]:
    said = []
    for call in _WRONG_CALLS:
        try:
            call()
        except TypeError as error:
            said.append(str(error))
    return x + len(said), said


def test_arguments_that_a_row_does_not_take_are_left_to_python() -> None:
    compiled = jitmagic.jit(_calls_rows_wrongly)
    for _ in range(2):
        x, said = compiled(torch.zeros(2))
        assert said == _calls_rows_wrongly(torch.zeros(2))[1]
        assert x.tolist() == [len(_WRONG_CALLS)] * 2


def test_keywords_may_have_the_names_of_a_handlers_parameters() -> None:
    def program(x: Tensor) -> Any:
        made = types.SimpleNamespace(machine=1, obj=2)
        return x + made.machine, made.obj

    compiled = jitmagic.jit(program, fullgraph=True)
    torch.testing.assert_close(compiled(torch.zeros(2)), program(torch.zeros(2)))


def test_a_handler_takes_args_and_kwargs_both_or_neither() -> None:
    with pytest.raises(AssertionError, match="only one of the two"):
        handles(object())(lambda machine, args: None)


# -- keywords --------------------------------------------------------------------------------------

# These change the state of the process, wait, or write.
_IMPURE = {
    "open", "__import__", "compile", "manual_seed", "warn", "_log", "isEnabledFor",
    "register_hook", "backward", "enter_dual_level", "exit_dual_level", "__enter__", "__exit__",
}  # fmt: skip
_EXAMPLES = (
    "ab", [3, 1, 2], 2, torch.ones(2, requires_grad=True), True, len, torch.nn.Linear(1, 1),
)  # fmt: skip


def _named_parameters(function: object) -> list[inspect.Parameter]:
    """Return the required parameters and the first optional one, if all may be keywords."""
    try:
        found = list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    required = [one for one in found if one.default is one.empty and one.kind < one.KEYWORD_ONLY]
    optional = [one for one in found if one.default is not one.empty]
    both = [*required, *optional[:1]]
    return both if all(one.kind is one.POSITIONAL_OR_KEYWORD for one in both) else []


_compiled = functools.partial(jitmagic.jit, options={"on_error": "raise"})


def _shown(result: object) -> object:
    if isinstance(result, Iterator):
        return type(result), [
            re.sub(" at 0x.*", "", str(item)) for item in itertools.islice(result, 4)
        ]
    plain = isinstance(result, int | float | complex | str | tuple | list | Tensor | None)
    return (type(result), re.sub(" at 0x[0-9a-f]+", "", str(result))) if plain else type(result)


def _outcome(function: Any, named: dict[str, Any], run: Callable[[Any], Any]) -> object:
    named = copy.deepcopy(named)

    def program(x: Tensor) -> tuple[Tensor, Any]:
        return x + 1, function(**named)

    try:
        moved, result = run(program)(torch.zeros(2))
        shown = _shown(result)
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)
    assert moved.tolist() == [1.0, 1.0]
    return shown


def _accepted(function: Any, parameters: list[inspect.Parameter]) -> Iterator[dict[str, Any]]:
    """Find keywords that the function takes: of all its parameters, and of the required ones."""
    for count in range(len(parameters), 0, -1):
        names = [one.name for one in parameters[:count]]
        if parameters[count:] and parameters[count].default is inspect.Parameter.empty:
            return
        for values in itertools.product(_EXAMPLES, repeat=count):
            named = dict(zip(names, values, strict=True))
            try:
                function(**copy.deepcopy(named))
            except Exception:  # noqa: BLE001, S112
                continue
            yield named
            break


def _callables() -> dict[str, tuple[Any, list[inspect.Parameter]]]:
    found = {}
    for function, _ in registry._FUNCTIONS.load_all().values():
        parameters = _named_parameters(function)
        name = getattr(function, "__qualname__", str(function))
        if (
            0 < len(parameters) <= 3
            and not isinstance(function, CodeType)
            and name.rpartition(".")[2] not in _IMPURE
            and not name.startswith("set_")  # the process would keep what they set
        ):
            found[f"{function.__module__}.{name}"] = function, parameters
    return found


_CALLABLES = _callables()


@pytest.mark.parametrize("name", _CALLABLES)
def test_keywords_give_the_result_of_eager(name: str) -> None:
    function, parameters = _CALLABLES[name]
    calls = list(_accepted(function, parameters))
    if not calls:
        pytest.skip("no simple arguments")
    for named in calls:
        eager = _outcome(function, named, lambda program: program)
        assert _outcome(function, named, _compiled) == eager, named


def _two(a: int, b: int) -> int:
    return a + b


_WRITTEN: list[Callable[[], Any]] = [
    lambda: str(b"ab", encoding="ascii"),
    lambda: str(object=5),
    lambda: str(errors="x"),
    lambda: int("ff", base=16),
    lambda: int(base=16),
    lambda: complex(imag=2),
    lambda: torch.finfo(type=torch.float16).max,
    lambda: torch.iinfo(type=torch.int8).max,
    lambda: torch.iinfo(torch.float32),
    lambda: list(iterable=[1]),
    lambda: tuple(a=1),
    lambda: set(a=1),
    lambda: sorted([2, 1], foo=1),
    lambda: len(value=[1]),
    lambda: torch.is_tensor(obj=1),
    lambda: max(1, 2, default=3),
    lambda: list(itertools.accumulate(iterable=[1, 2, 3], initial=4)),
    lambda: list(itertools.combinations(iterable=[1, 2, 3], r=2)),
    lambda: list(itertools.repeat(object=1, times=2)),
    lambda: list(itertools.product([1, 2], repeat=2)),
    lambda: list(itertools.zip_longest([1], [1, 2], fillvalue=0)),
    lambda: list(zip([1, 2], [3], strict=True)),
    lambda: collections.deque(maxlen=2),
    lambda: collections.OrderedDict(a=1).popitem(last=False),
    lambda: dict(self=1, iterable=2),
    lambda: [str(part) for part in torch.unbind(input=torch.ones(2), dim=0)],
    lambda: [str(part) for part in torch.ones(2).unbind(dim=0)],
    lambda: torch.ones(2).unbind(input=1),
    lambda: torch.tensor(data=[1, 2], dtype=torch.int8).tolist(),
    lambda: list(inspect.signature(obj=_two).parameters),
    lambda: torch.get_autocast_dtype(device_type="cpu"),
    lambda: re.sub(pattern="a", repl="b", string="Aa", flags=re.IGNORECASE),
    lambda: re.split("a", string="1a2a3", maxsplit=1),
    lambda: [1].append(object=2),
    lambda: functools.cmp_to_key(mycmp=_two),
    lambda: [kind() for kind in (int, str, list, dict, collections.deque)],
    lambda: sorted([1], 2),  # type: ignore[call-overload]
    lambda: list([1], 2),
    lambda: hash(1, 2),
    lambda: sum([1], 2, 3),
    lambda: isinstance(1, int, 3),
    lambda: {1: 2}.setdefault(1, 2, 3),
]


@pytest.mark.parametrize("index", range(len(_WRITTEN)))
def test_arguments_of_a_call_are_those_of_the_signature(index: int) -> None:
    call = _WRITTEN[index]
    eager = _outcome(call, {}, lambda program: program)
    assert _outcome(call, {}, _compiled) == eager


class _Counted:
    calls = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __lt__(self, other: _Counted) -> bool:
        _Counted.calls += 1
        return self.value < other.value


def _counts_comparisons(x: Tensor) -> tuple[Tensor, list[int], int]:
    before = _Counted.calls
    items = sorted(_Counted(value) for value in (3, 1, 2, 2, 0))
    return x + 1, [item.value for item in items], _Counted.calls - before


def _sorts_by_a_key_that_reads_the_list(x: Tensor) -> tuple[Tensor, list[int]]:
    items = [3, 1, 2]
    items.sort(key=lambda value: len(items) * value)
    return x + 1, items


def _sorts_by_a_key_that_changes_the_list(x: Tensor) -> tuple[Tensor, list[int], str]:
    items, said = [3, 1, 2], ""
    try:
        items.sort(key=lambda value: items.append(value) or value)  # type: ignore[func-returns-value]
    except ValueError as error:
        said = str(error)
    return x + 1, items, said


def _sorts_by_a_key_that_raises(x: Tensor) -> tuple[Tensor, list[int]]:
    items = [3, 1, 0, 2]
    try:
        items.sort(key=lambda value: 1 // value)
    except ZeroDivisionError:
        x = x + 1
    return x, items


@pytest.mark.parametrize(
    "program",
    [
        _counts_comparisons,
        _sorts_by_a_key_that_reads_the_list,
        _sorts_by_a_key_that_changes_the_list,
        _sorts_by_a_key_that_raises,
    ],
)
def test_sorting_compares_and_changes_the_list_as_cpython(program: Callable[..., Any]) -> None:
    compiled = jitmagic.jit(program)
    for _ in range(2):
        assert str(compiled(torch.zeros(2))) == str(program(torch.zeros(2)))
