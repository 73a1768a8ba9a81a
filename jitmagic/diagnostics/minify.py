"""minify: from a function that is compiled wrongly to the few operations that show it, as a script.

    jitmagic.minify(fn, "folder")(*args)   ->  Path of folder/repro.py, or None when nothing fails

In: a function and a call of it; its graphs are taken out with the tensors they are called with. A
graph fails when its compiled form crashes in a stage, or answers otherwise than eager (values and
gradients; floating point beyond what reassociated sums explain). Out: the smallest graph found that
still fails in the same way, written as a script over random inputs of the same specs, which raises
AssertionError while the bug is there. Delta debugging: results that nobody needs go, then the end
of the graph, then its beginning (values become inputs), then sizes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from ..api import handle_of, jit, tagged_copy
from ..errors import FallbackWarning
from ..options import Options

__all__ = ["agree", "made", "minify"]

RTOL, RTOL_HALF = 1e-3, 3e-2  # of the largest element
_KEYWORDS = ("backend", "mode", "fullgraph", "dynamic")
_FELL = ("could not be compiled", "code generator failed", "runs as eager")  # a stage failed
_OF_THE_PLACE = ("cache_dir", "cxx", "verify")  # options that a script does not take along
_HEAD = '''\
"""{what}

Written by jitmagic.minify; fails with AssertionError while the bug is there.
"""

import operator
from math import inf, nan

import torch
from torch import device

from jitmagic.diagnostics.minify import agree, made


'''


def minify(
    fn: Callable[..., Any], folder: str | Path = "jitmagic_repro", **options: Any
) -> Callable[..., Path | None]:
    """`minify(fn, folder)(*args)`: call `fn` once, and write the smallest failing part of it to
    folder/repro.py. None: every graph compiles and agrees with eager. Options are those of `jit`.
    """
    known = handle_of(fn)
    chosen = options or (_changed(known.options) if known is not None else {})

    def run(*args: Any, **kwargs: Any) -> Path | None:
        for graph, inputs in _graphs(fn, args, kwargs):
            case = _Case(_lifted(graph, inputs), tuple(inputs) + _attributes(graph))
            failure = case.failure(chosen)
            if failure is None:
                continue
            smallest = _shrink(case, partial(_fails_alike, failure, chosen))
            return _write(smallest, chosen, Path(folder))
        return None

    return run


def _changed(options: Options) -> dict[str, Any]:
    """What is not at its default, as keywords of `jit`."""
    found = {f.name: getattr(options, f.name) for f in fields(Options)
             if getattr(options, f.name) != f.default and f.name not in _OF_THE_PLACE}  # fmt: skip
    own = {name: found.pop(name) for name in tuple(found) if name not in _KEYWORDS}
    return {**found, "options": own} if own else found


def _graphs(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[GraphModule, list[Tensor]]]:
    """Every graph of one call, with the tensors it is called with, as they were before it."""
    found: list[tuple[GraphModule, list[Tensor]]] = []

    def collect(gm: GraphModule, example: Sequence[Tensor]) -> Callable[..., Any]:
        found.append((gm, [_same(tensor) for tensor in example]))
        return gm.forward

    tagged_copy(fn, {"backend": collect})(*args, **kwargs)
    return found


def _same(tensor: Tensor) -> Tensor:
    """A leaf of the same values and layout."""
    shape, stride, dtype = tensor.shape, tensor.stride(), tensor.dtype
    fresh = torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device)
    with torch.no_grad():
        if not any(s == 0 and n > 1 for n, s in zip(shape, stride, strict=True)):
            fresh.copy_(tensor)
        else:
            fresh = tensor.detach().clone()
    return fresh.requires_grad_(tensor.requires_grad)


# -- one candidate --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """A graph of tensors only (no attributes) and tensors to call it on."""

    graph: Graph
    inputs: tuple[Tensor, ...]

    @property
    def size(self) -> tuple[int, int]:
        elements = sum(tensor.numel() for tensor in self.inputs)
        return sum(node.op not in ("placeholder", "output") for node in self.graph.nodes), elements

    def source(self) -> str:
        """The graph as a plain function `repro`."""
        text = self.graph.python_code("self").src.strip()
        body = text[text.index("def forward(self") :]
        return body.replace("def forward(self, ", "def repro(", 1).replace("(self)", "()", 1)

    def function(self) -> Callable[..., Any]:
        names = dict(self.graph.python_code("self").globals)
        exec(compile(self.source(), "<jitmagic repro>", "exec"), names)
        made: Callable[..., Any] = names["repro"]
        return made

    def failure(self, options: Mapping[str, Any]) -> str | None:
        """ "wrong", "crash: KIND", or None; None too where eager itself refuses."""
        try:
            return _failure(self.function(), self.inputs, options)
        except Exception:  # a candidate that eager cannot run is none, whatever it raises
            return None


def _failure(
    fn: Callable[..., Any], inputs: Sequence[Tensor], options: Mapping[str, Any]
) -> str | None:
    expected = _answers(fn, inputs)
    compiled = jit(fn, **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            got = _answers(compiled, inputs)
        except Exception as error:  # eager did not raise: whatever this is, it is the failure
            return f"crash: {type(error).__name__}"
    for warning in told:
        message = str(warning.message)
        if issubclass(warning.category, FallbackWarning) and any(w in message for w in _FELL):
            return f"crash: {_kind(message)}"
    return None if _close(got, expected) else "wrong"


def _kind(message: str) -> str:
    """The name of the error in a fallback's message, else what fell back."""
    names = [w.rstrip(":") for w in message.split() if w.endswith(("Error:", "Failed:"))]
    return names[0] if names else message.partition("\n")[0][:40]


def _answers(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Any]:
    """Results, the inputs as they were left, and gradients where something requires them."""
    own = [_same(tensor) for tensor in inputs]
    torch.manual_seed(0)
    results = [r for r in _flat(fn(*own)) if isinstance(r, Tensor)]
    wanted = [r for r in results if r.requires_grad]
    leaves = [x for x in own if x.requires_grad]
    kept = [r.detach().clone() for r in (*results, *own)]
    if not wanted or not leaves:
        return kept
    # Of ones the gradient of a softmax or a norm is zero, whatever its backward does with them.
    uneven = [made(r.shape, r.stride(), r.dtype, str(r.device)) for r in wanted]
    return [*kept, *torch.autograd.grad(wanted, leaves, uneven, allow_unused=True)]


def _flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in _flat(part)]
    return [result]


def _close(got: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(got) == len(expected) and all(
        a is b if a is None or b is None else _alike(a, b)
        for a, b in zip(got, expected, strict=True)
    )


def _alike(a: Tensor, b: Tensor) -> bool:
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    if not b.is_floating_point():
        return torch.equal(a, b)
    finite = b[b.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    room = RTOL_HALF if b.dtype.itemsize <= 2 else RTOL
    return torch.allclose(a.double(), b.double(), rtol=room, atol=room * largest, equal_nan=True)


# -- graphs ---------------------------------------------------------------------------------------


def _attributes(gm: GraphModule) -> tuple[Tensor, ...]:
    """The tensors that the graph reads as attributes, in the order of `_lifted`."""
    targets = dict.fromkeys(n.target for n in gm.graph.nodes if n.op == "get_attr")
    return tuple(_same(_attribute(gm, str(target))) for target in targets)


def _attribute(gm: GraphModule, target: str) -> Any:
    found: Any = gm
    for name in target.split("."):
        found = getattr(found, name)
    return found


def _lifted(gm: GraphModule, inputs: Sequence[Tensor]) -> Graph:
    """The graph with its attributes as further inputs."""
    graph = _copy(gm.graph)
    holders = [node for node in graph.nodes if node.op == "placeholder"]
    assert len(holders) == len(inputs)
    made: dict[Any, Node] = {}
    last = holders[-1] if holders else None
    for node in [n for n in graph.nodes if n.op == "get_attr"]:
        if node.target not in made:
            with graph.inserting_after(last) if last else graph.inserting_before():
                last = made[node.target] = graph.placeholder(f"c{len(made)}")
        node.replace_all_uses_with(made[node.target])
        graph.erase_node(node)
    return graph


def _copy(graph: Graph) -> Graph:
    fresh = Graph()
    fresh.output(fresh.graph_copy(graph, {}))
    return fresh


def _with_outputs(case: _Case, names: Sequence[str]) -> _Case:
    """Only these values as results; what they do not need goes, inputs included."""
    graph = _copy(case.graph)
    nodes = {node.name: node for node in graph.nodes}
    output = next(node for node in graph.nodes if node.op == "output")
    output.args = (tuple(nodes[name] for name in names),)
    return _without_waste(graph, case.inputs)


def _without_waste(graph: Graph, inputs: Sequence[Tensor]) -> _Case:
    """In-place operations stay with what they write to; nothing else without a reader does."""
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    kept = []
    holders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, tensor in zip(holders, inputs, strict=True):
        if node.users:
            kept.append(tensor)
        else:
            graph.erase_node(node)
    return _Case(graph, tuple(kept))


class _Values(Interpreter):
    """Runs the graph by itself and keeps every value."""

    def __init__(self, case: _Case) -> None:
        super().__init__(GraphModule({}, copy(case.graph)))
        self.values: dict[str, Any] = {}
        self.run(*(_same(tensor) for tensor in case.inputs))

    def run_node(self, node: Node) -> Any:
        self.values[node.name] = made = super().run_node(node)
        return made


def _with_inputs(case: _Case, names: Sequence[str], values: Mapping[str, Any]) -> _Case:
    """These values become inputs."""
    graph, inputs = _copy(case.graph), list(case.inputs)
    for name in names:
        node = next(node for node in graph.nodes if node.name == name)
        first = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(first):
            holder = graph.placeholder(f"v_{name}")
        node.replace_all_uses_with(holder)
        graph.erase_node(node)
        inputs.append(_same(values[name]))
    return _without_waste(graph, inputs)


# -- shrinking ------------------------------------------------------------------------------------

Fails = Callable[[_Case], bool]


def _fails_alike(failure: str, options: Mapping[str, Any], case: _Case) -> bool:
    return case.failure(options) == failure


def _shrink(case: _Case, fails: Fails) -> _Case:
    """Take the first smaller candidate that fails, until there is none."""
    while True:
        smaller = next(
            (one for one in _candidates(case) if one.size < case.size and fails(one)), None
        )
        if smaller is None:
            return case
        case = smaller


def _candidates(case: _Case) -> Iterator[_Case]:
    """Smaller cases, the much smaller ones first."""
    values = _Values(case).values
    nodes = [
        node
        for node in case.graph.nodes
        if node.op not in ("placeholder", "output") and isinstance(values[node.name], Tensor)
    ]
    for node in nodes:  # one operation alone, on the values it is given
        alone = _with_outputs(case, [node.name])
        before = [n.name for n in node.all_input_nodes if n.op != "placeholder"]
        if all(isinstance(values[name], Tensor) for name in before):
            yield _with_inputs(alone, before, values)
    for node in nodes:  # the end goes
        yield _with_outputs(case, [node.name])
    for node in nodes:  # the beginning goes
        yield _with_inputs(case, [node.name], values)
    yield from _smaller_sizes(case)


def _smaller_sizes(case: _Case) -> Iterator[_Case]:
    """Every dimension of one size gets a smaller one; where that cannot be, eager refuses."""
    sizes = sorted({n for tensor in case.inputs for n in tensor.shape if n > 2}, reverse=True)
    for size in sizes:
        for less in (2, size // 2):
            inputs = tuple(
                tensor[tuple(slice(less if n == size else n) for n in tensor.shape)]
                .detach()
                .clone()
                .requires_grad_(tensor.requires_grad)
                for tensor in case.inputs
            )
            yield _Case(case.graph, inputs)


# -- the script -----------------------------------------------------------------------------------


def _write(case: _Case, options: Mapping[str, Any], folder: Path) -> Path:
    """repro.py; with the very tensors beside it where random ones do not show the failure."""
    folder.mkdir(parents=True, exist_ok=True)
    failure = case.failure(options)
    random = _Case(case.graph, tuple(_remade(tensor) for tensor in case.inputs))
    if random.failure(options) == failure:
        inputs = f"[\n{''.join(f'    {_made_text(t)},{chr(10)}' for t in case.inputs)}]"
    else:
        torch.save(list(case.inputs), folder / "inputs.pt")
        inputs = "torch.load(__file__.replace('repro.py', 'inputs.pt'))"
    given = {k: v for k, v in options.items() if isinstance(v, (str, bool, int, dict))}
    what = f"The compiled form of this graph fails ({failure})."
    call = f'if __name__ == "__main__":\n    agree(repro, INPUTS, **{given!r})\n'
    path = folder / "repro.py"
    path.write_text(f"{_HEAD.format(what=what)}{case.source()}\n\n\nINPUTS = {inputs}\n\n\n{call}")
    return path


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    """What `made` makes it of."""
    plain = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    whole = not plain and tensor.numel() > 0
    span = (int(tensor.min()), int(tensor.max())) if whole else (0, 0)
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device),
            tensor.requires_grad, *span)  # fmt: skip


def _made_text(tensor: Tensor) -> str:
    return f"made({', '.join(map(repr, _facts(tensor)))})"


def _remade(tensor: Tensor) -> Tensor:
    return made(*_facts(tensor))


def made(
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    where: str = "cpu",
    requires_grad: bool = False,
    low: int = 0,
    high: int = 0,
) -> Tensor:
    """A random tensor of a spec: normal numbers, or integers from low to high; always the same."""
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        values = torch.randint(0, 2, tuple(shape), generator=generator)
    elif dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(tuple(shape), generator=generator)
    else:
        values = torch.randint(low, high + 1, tuple(shape), generator=generator)
    fresh = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=where)
    return fresh.copy_(values).requires_grad_(requires_grad)


def agree(fn: Callable[..., Any], inputs: Sequence[Tensor], **options: Any) -> None:
    """Raises AssertionError where the compiled function fails; says so where it does not."""
    failure = _failure(fn, inputs, options)
    if failure is not None:
        raise AssertionError(f"the compiled function fails: {failure}")
    print("the compiled function agrees with eager")
