"""input_variation: `jitmagic.test` compares compiled code with eager on variations of given inputs.

    jitmagic.test(fn)(*args, n=200)   ->  TestReport; true if all inputs agree

Input: a function and arguments. Output: the variations tried and the smallest failing input. Tensor
arguments get other sizes (a size is replaced wherever it occurs, so that shapes still match),
layouts, dtypes, values (nan, inf, -0.0, huge, tiny) and requires_grad. Both sides run on copies
from the same seed. Results, arguments after the call, gradients and errors are compared by the rule
of agreement.py. Inputs on which eager itself is not reproducible are skipped.
"""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...api import original_of, tagged_copy
from ...compat.pytree import tree_flatten, tree_leaves, tree_unflatten
from ...lazy_dataclass import dataclass
from ...torch_types import AnyFunction
from ..whole_call import whole
from ..words import HINT, WRONG, Question, Readable, count, refuse_arguments
from .agreement import Line, agree, compare, in_double
from .cases import (
    Results,
    as_tensor,
    chosen_options,
    collect_results,
    copy_of,
    name_of,
    same_random_numbers,
)

__all__ = ["Failure", "TestReport", "test"]

SPECS = 12  # combinations of sizes, layouts and dtypes, each of which costs a compile
_MOST_SHOWN = 32  # elements of a tensor whose values are printed
_SIZES = (0, 1, 2, 3, 5, 8, 17)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, 1e-30, -1.0)
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """The smallest input found on which compiled code and eager disagree."""

    what: str  # the difference, in words
    inputs: tuple[str, ...]  # source code of each tensor
    tried: int  # number of the variation that failed first

    def __str__(self) -> str:
        return "\n".join([f"input {self.tried}: {self.what}", *(f"    {x}" for x in self.inputs)])


@dataclass(frozen=True, slots=True, repr=False)
class TestReport(Readable):
    """The variations that were tried. True if none failed."""

    __test__ = False  # pytest would collect a class whose name begins with Test

    name: str
    tried: int
    refused: int  # inputs on which eager and compiled code raise the same error
    unsteady: int  # inputs on which eager is not reproducible
    kinds: Mapping[str, int]  # number of inputs by kind of change
    failure: Failure | None = None

    def __bool__(self) -> bool:
        return self.failure is None

    def styled_lines(self) -> list[tuple[str, str]]:
        tried = [count(self.tried, "input")]
        if self.refused:
            tried.append(f"{self.refused:,} of them raise the same error in both")
        if self.unsteady:
            tried.append(f"{self.unsteady:,} not judged: eager is not reproducible")
        changes = ", ".join(f"{kind} {number}" for kind, number in sorted(self.kinds.items()))
        verdict = "compiled code agrees with eager" if self else "compiled code DIFFERS from eager"
        if self and self.refused + self.unsteady == self.tried:
            verdict = "nothing could be compared"
        lines = [(f"{self.name}: {verdict} ({'; '.join(tried)})", "" if self else WRONG)]
        lines.append((f"  varied: {changes}", HINT))
        failure = str(self.failure).splitlines() if self.failure else ()
        return [*lines, *((line, WRONG) for line in failure)]


def test(fn: AnyFunction, /, *arguments: object, **options: object) -> Question[TestReport]:
    """`test(fn)(*args, n=200)`: compare compiled code with eager on n variations of the arguments.

    `fn` may be plain or tagged; `options` replace those it is tagged with. It is called about 2n
    times with all its side effects; a module is copied and not changed.
    """
    refuse_arguments("test", arguments)
    chosen = chosen_options(fn, options)

    def run(*args: object, n: int = 200, seed: int = 0, **kwargs: object) -> TestReport:
        leaves, shape = tree_flatten((args, kwargs))
        trial = _Trial(original_of(fn), chosen, leaves, shape)
        with same_random_numbers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _tested(name_of(fn), trial, n, random.Random(seed))

    return Question("test", fn, run)


test.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it in a test module


def _tested(name: str, trial: _Trial, n: int, chance: random.Random) -> TestReport:
    kinds: Counter[str] = Counter()
    refused = unsteady = 0
    for number, (changes, inputs) in enumerate(_varied(trial.inputs, n, chance), 1):
        kinds.update(changes or ("as given",))
        difference = trial.difference(inputs)
        refused += difference == _REFUSED
        unsteady += difference == _UNSTEADY
        if difference not in _NO_FAILURE:
            smallest, what = _shrunk(trial, inputs, difference)
            failure = Failure(what, tuple(map(_as_code, smallest)), number)
            return TestReport(name, number, refused, unsteady, dict(kinds), failure)
    return TestReport(name, n, refused, unsteady, dict(kinds))


# -- one input ------------------------------------------------------------------------------------

_REFUSED, _UNSTEADY = "refused", "unsteady"
_NO_FAILURE = ("", _REFUSED, _UNSTEADY)


class _Trial:
    """The function with all arguments but the tensors bound."""

    def __init__(
        self,
        fn: AnyFunction,
        options: Mapping[str, Any],
        leaves: list[Any],
        shape: object,
    ) -> None:
        self._fn, self._options, self._leaves, self._shape = fn, options, leaves, shape
        self._places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._compiled: dict[object, AnyFunction] = {}
        self._module: torch.nn.Module | None = None  # keeps the copy that is called alive

    @property
    def inputs(self) -> Inputs:
        """The tensors among the arguments."""
        return tuple(self._leaves[place] for place in self._places)

    def difference(self, inputs: Inputs) -> str:
        """Return the difference in words, or one of _NO_FAILURE.

        Those are: both agree; both raise the same error; eager is not reproducible, because it
        reads the time, an address or state of its own.
        """
        eager, error = self._results(self._plain(), inputs)
        compiled, compiled_error = self._results(self._tagged(inputs), inputs)
        if error or compiled_error:
            if type(error) is type(compiled_error):
                return _REFUSED
            return f"eager {_outcome(error)}, compiled code {_outcome(compiled_error)}"
        if all(line.agrees for line in compare(compiled, eager, {})):
            return ""
        again, _ = self._results(self._plain(), inputs)
        if not agree(again, eager, dict):
            return _UNSTEADY
        lines = compare(compiled, eager, self._truth(inputs))
        return "; ".join(_without_graph(line) for line in lines if not line.agrees)

    def _results(self, fn: AnyFunction, inputs: Inputs) -> tuple[Results, Exception | None]:
        try:
            return collect_results(fn, inputs), None
        except Exception as error:  # an invalid input: both sides should raise what eager raises
            return {}, error

    def _truth(self, inputs: Inputs) -> Results:
        return in_double(self._plain(doubled=True), inputs)[0]

    def _plain(self, doubled: bool = False) -> AnyFunction:
        fn = copy.deepcopy(self._fn) if isinstance(self._fn, torch.nn.Module) else self._fn
        if doubled and isinstance(fn, torch.nn.Module):
            fn = fn.double()
        return self._called(fn)

    def _tagged(self, inputs: Inputs) -> AnyFunction:
        """Return a tagged function for these specs.

        Each spec has its own: one function would reach its recompile limit. A module is copied for
        each call, and the copies share compiled code.
        """
        if isinstance(self._fn, torch.nn.Module):
            self._module = copy.deepcopy(self._fn)
            return self._called(tagged_copy(self._module, self._given()))
        key = tuple((x.shape, x.stride(), x.dtype, x.requires_grad) for x in inputs)
        if key not in self._compiled:
            self._compiled[key] = self._called(tagged_copy(self._fn, self._given()))
        return self._compiled[key]

    def _given(self) -> dict[str, object]:
        """Return the options, with keep="compiled": slow variants have to be correct too."""
        own = self._options.get("options") or {}
        return {**self._options, "options": {"keep": "compiled", "notices": "never", **dict(own)}}

    def _called(self, fn: AnyFunction) -> AnyFunction:
        def call(*tensors: Tensor) -> list[Tensor]:
            leaves = list(self._leaves)
            for place, tensor in zip(self._places, tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = tree_unflatten(leaves, self._shape)
            return [as_tensor(leaf) for leaf in tree_leaves(whole(fn(*args, **kwargs)))]

        return call


def _outcome(error: Exception | None) -> str:
    if error is None:
        return "returns"
    return f"raises {type(error).__name__}: {error}".partition("\n")[0]


def _without_graph(line: Line) -> str:
    return str(line).partition(", ")[2]


# -- inputs ---------------------------------------------------------------------------------------

Change = Callable[[Inputs, random.Random], Inputs]


def _varied(
    given: Inputs, n: int, chance: random.Random
) -> Iterator[tuple[tuple[str, ...], Inputs]]:
    """Yield (kinds of change, inputs): the given tensors, then sizes 0 and 1, then random changes.

    A random change varies up to three parts of the specs, or only the values of earlier inputs.
    """
    specs: list[tuple[tuple[str, ...], Inputs]] = [((), given)]
    edges = [(("sizes",), inputs) for inputs in _edge_sizes(given)][: SPECS // 2]
    for number in range(n):
        if not number:
            yield (), given
        elif number <= len(edges):
            specs.append(edges[number - 1])
            yield specs[-1]
        elif len(specs) < min(SPECS, n) and number % 2:
            names = tuple(chance.sample(sorted(_SPEC_CHANGES), chance.choice((1, 1, 2, 3))))
            inputs = given
            for name in names:
                inputs = _SPEC_CHANGES[name](inputs, chance)
            specs.append((names, inputs))
            yield names, inputs
        else:
            names, inputs = chance.choice(specs)
            yield (*names, "values"), _other_values(inputs, chance)


def _edge_sizes(inputs: Inputs) -> Iterator[Inputs]:
    """Yield the inputs with each size replaced by 0 and by 1, wherever it occurs.

    Sizes of first dimensions come first, as the batch size varies most often.
    """
    sizes = dict.fromkeys(size for tensor in inputs for size in tensor.shape)
    for old in sizes:
        for new in (0, 1):
            if new != old:
                yield _with_size(inputs, old, new)


def _other_sizes(inputs: Inputs, chance: random.Random) -> Inputs:
    """Replace one size, wherever it occurs, by a random one."""
    sizes = sorted({size for tensor in inputs for size in tensor.shape})
    return _with_size(inputs, chance.choice(sizes), chance.choice(_SIZES)) if sizes else inputs


def _with_size(inputs: Inputs, old: int, new: int) -> Inputs:
    return tuple(_resized(x, [new if size == old else size for size in x.shape]) for x in inputs)


def _resized(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Repeat the tensor's values to fill a shape, so that integers stay in their range."""
    total = math.prod(shape)
    flat = tensor.detach().reshape(-1)
    if not flat.numel():
        flat = flat.new_zeros(1)
    resized = flat.repeat(total // flat.numel() + 1)[:total].reshape(tuple(shape))
    return resized.requires_grad_(tensor.requires_grad)


def _other_layout(inputs: Inputs, chance: random.Random) -> Inputs:
    """Keep the values, but use every second element of memory or reverse the order of strides."""
    return tuple(_strided(x) if chance.random() < 0.5 else _turned(x) for x in inputs)


def _strided(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    strided = torch.stack([plain, plain], -1)[..., 0]
    return strided.requires_grad_(tensor.requires_grad)


def _turned(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    order = tuple(reversed(range(plain.dim())))
    return plain.permute(order).contiguous().permute(order).requires_grad_(tensor.requires_grad)


def _other_dtype(inputs: Inputs, chance: random.Random) -> Inputs:
    dtype = chance.choice(_FLOATS)
    return tuple(
        x.detach().to(dtype).requires_grad_(x.requires_grad) if x.is_floating_point() else x
        for x in inputs
    )


def _other_grad(inputs: Inputs, chance: random.Random) -> Inputs:
    floats = [n for n, x in enumerate(inputs) if x.is_floating_point()]
    chosen = {n for n in floats if chance.random() < 0.5}
    return tuple(
        x.detach().clone().requires_grad_(n in chosen) if n in floats else x
        for n, x in enumerate(inputs)
    )


def _other_values(inputs: Inputs, chance: random.Random) -> Inputs:
    """Replace floats by random and special values; permute integers and bools."""
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    special = chance.random() < 0.5
    changed = []
    for tensor in inputs:
        fresh = copy_of(tensor)
        with torch.no_grad():
            if tensor.is_floating_point():
                values = torch.randn(tensor.shape, generator=generator, device="cpu")
                fresh.copy_(values)
                for _ in range(min(3, tensor.numel()) if special else 0):
                    number = chance.randrange(tensor.numel())
                    index = torch.unravel_index(torch.tensor(number), tensor.shape)
                    fresh[tuple(index)] = chance.choice(_SPECIAL)
            elif tensor.numel():
                order = torch.randperm(tensor.numel(), generator=generator, device="cpu")
                fresh.copy_(tensor.cpu().reshape(-1)[order].reshape(tensor.shape))
        changed.append(fresh)
    return tuple(changed)


_SPEC_CHANGES: Mapping[str, Change] = {
    "sizes": _other_sizes,
    "layout": _other_layout,
    "dtype": _other_dtype,
    "requires_grad": _other_grad,
}


# -- shrinking ------------------------------------------------------------------------------------


def _shrunk(trial: _Trial, inputs: Inputs, what: str) -> tuple[Inputs, str]:
    """Replace the inputs by the first simpler ones that fail too, until there are none."""
    while True:
        for simpler in _simpler(inputs):
            failure = trial.difference(simpler)
            if failure not in _NO_FAILURE:
                inputs, what = simpler, failure
                break
        else:
            return inputs, what


def _simpler(inputs: Inputs) -> Iterator[Inputs]:
    """Yield inputs with smaller sizes, then with simpler layouts, grads and values."""
    sizes = sorted({size for tensor in inputs for size in tensor.shape if size > 1}, reverse=True)
    for size in sizes:
        for less in dict.fromkeys((1, 2, size // 2, size - 1)):
            if less < size:
                cut = [
                    x[tuple(slice(less if s == size else s) for s in x.shape)].detach().clone()
                    for x in inputs
                ]
                yield tuple(
                    c.requires_grad_(x.requires_grad) for c, x in zip(cut, inputs, strict=True)
                )
    for number, tensor in enumerate(inputs):
        for plainer in _plainer(tensor):
            yield (*inputs[:number], plainer, *inputs[number + 1 :])


def _plainer(tensor: Tensor) -> Iterator[Tensor]:
    wants, plain = tensor.requires_grad, tensor.detach()
    if not tensor.is_contiguous():
        yield plain.contiguous().requires_grad_(wants)
    if wants:
        yield plain.clone()
    if tensor.is_floating_point() and bool((plain != 0).any()):
        yield torch.zeros_like(plain).requires_grad_(wants)
        if bool((plain != 1).any()):
            yield torch.ones_like(plain).requires_grad_(wants)


def _as_code(tensor: Tensor) -> str:
    dtype, plain = tensor.dtype, tensor.detach()
    grad = ", requires_grad=True" if tensor.requires_grad else ""
    strides = "" if tensor.is_contiguous() else f"  # strides {tensor.stride()}"
    if plain.numel() > _MOST_SHOWN:
        return f"torch.randn({tuple(plain.shape)}, dtype={dtype}{grad}){strides}"
    if not plain.numel():
        return f"torch.empty({tuple(plain.shape)}, dtype={dtype}{grad})"
    return f"torch.tensor({plain.tolist()}, dtype={dtype}{grad}){strides}"
