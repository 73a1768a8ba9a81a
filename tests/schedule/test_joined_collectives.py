"""Small collectives become one: which are joined, and what a graph looks like then."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node

if not torch.distributed.is_available():
    pytest.skip("torch has no distributed package", allow_module_level=True)

from jitmagic.errors import OptionError, Unsupported
from jitmagic.graph.distributed import joining
from jitmagic.graph.distributed.joining import join_collectives
from jitmagic.graph.distributed.rooted import rooted_operator
from jitmagic.graph.distributed.waited import is_waited, waited
from jitmagic.graph.lazy_module import LazyModule
from jitmagic.options import Options, make_options
from jitmagic.spec import TensorSpec, contiguous_strides
from jitmagic.symbols.interval import Interval
from jitmagic.symbols.predicates import fresh_sizes, fresh_symbol

aten, functional = torch.ops.aten, torch.ops._c10d_functional
CPU = torch.device("cpu")


class Program:
    """Writes an ATen graph."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.graph, self.dtype, self._inputs = Graph(), dtype, list[Node]()

    def _described(self, node: Node, shape: tuple[Any, ...], dtype: Any = None) -> Node:
        strides = contiguous_strides(shape)
        node.meta["spec"] = TensorSpec(shape, strides, dtype or self.dtype, CPU)
        return node

    def input(self, *shape: Any, dtype: Any = None) -> Node:
        with self.graph.inserting_after(self._inputs[-1] if self._inputs else self.graph._root):
            self._inputs.append(self.graph.placeholder(f"x{len(self._inputs)}"))
        return self._described(self._inputs[-1], shape, dtype)

    def call(self, op: Any, *args: Any, shape: tuple[Any, ...] | None = None) -> Node:
        node = self.graph.call_function(op, args)
        like: TensorSpec = args[0].meta["spec"]
        return self._described(node, like.shape if shape is None else shape, like.dtype)

    def gather(self, x: Node, group: str = "0", ranks: int = 2) -> Node:
        rows, *rest = x.meta["spec"].shape or (1,)
        op = waited(functional.all_gather_into_tensor.default)
        return self.call(op, x, ranks, group, shape=(rows * ranks, *rest))

    def reduce(self, x: Node, by: str = "sum", group: str = "0") -> Node:
        return self.call(waited(functional.all_reduce.default), x, by, group)

    def joined(self, *outputs: Node, exact: bool = True) -> list[int]:
        """Return how many calls each joined collective stands for, after checking the graph."""
        self.graph.output(tuple(outputs))
        gm = LazyModule({}, self.graph)
        joining = join_collectives(gm, exact=exact)
        self.made, found = joining.module, joining.found
        self.made.graph.lint()
        assert bool(found) == bool(joining.added)
        counts = [sum(is_waited(n.target) for n in one.graph.nodes) for one in (gm, self.made)]
        sizes = [one.count for one in found]
        assert counts[1] == counts[0] - sum(sizes) + len(sizes)
        results = zip(outputs, self.made.graph.output_node().args[0], strict=True)  # type: ignore[arg-type]
        assert all(old.meta["spec"] == new.meta["spec"] for old, new in results)
        return sizes

    def order(self) -> list[str]:
        """Return the names of the collectives and of calls that are no part of packing."""
        packing = ("view", "cat", "slice", "clone")
        calls = (n for n in self.made.graph.nodes if n.op == "call_function")
        names = [str(node.target).partition(".")[2].removesuffix(".default") for node in calls]
        return [name.removeprefix("waited_") for name in names if not name.startswith(packing)]


def of_ranks(count: int) -> Callable[[str], Any]:
    """Return a stand-in for the function that finds a group, of this many ranks."""

    class Group:
        def size(self) -> int:
            return count

    return lambda name: Group()


def test_independent_gathers_become_one() -> None:
    program = Program()
    gathered = [program.gather(program.input(n, 8)) for n in (2, 3, 1)]
    assert program.joined(*gathered) == [3]
    assert program.order() == ["all_gather_into_tensor"]


def test_result_of_each_is_a_copy() -> None:
    """Views of one memory would not be independent tensors for the caller."""
    program = Program()
    program.joined(*(program.gather(program.input(2, 8)) for _ in range(2)))
    results: Any = program.made.graph.output_node().args[0]
    bases = {node.args[0] for node in results}
    assert len(bases) == 2
    assert all(base.target is aten.clone.default for base in bases)


def test_collective_that_needs_another_is_not_joined_with_it() -> None:
    program = Program()
    first = program.gather(program.input(2, 8))
    other = program.gather(program.input(2, 8))
    last = program.gather(program.call(aten.add.Tensor, first, 1))
    assert program.joined(last, other) == [2]
    assert program.order() == ["all_gather_into_tensor", "add.Tensor", "all_gather_into_tensor"]


def test_calls_that_need_a_result_follow_in_their_order() -> None:
    program = Program()
    first = program.gather(program.input(2, 8))
    doubled = program.call(aten.mul.Tensor, first, 2)
    late = program.call(aten.abs.default, program.input(2, 8))
    second = program.gather(late)
    assert program.joined(program.call(aten.sin.default, doubled), second) == [2]
    assert program.order() == ["abs", "all_gather_into_tensor", "mul.Tensor", "sin"]


@pytest.mark.parametrize(
    "op", [aten.mm.default, aten.bernoulli.default, aten.multinomial.default], ids=str
)
def test_long_random_and_raising_calls_wait_for_no_further_collective(op: Any) -> None:
    """A random call would draw after another one, and a product keep what it reads for longer."""
    program = Program()
    x = program.input(8, 8)
    first = program.gather(x)
    others = {aten.mm.default: [x], aten.multinomial.default: [1]}
    used = program.call(op, first, *others.get(op, []), shape=(16, 8))
    assert program.joined(used, program.gather(x)) == []


def test_large_collectives_stay_alone_and_joined_ones_are_bounded() -> None:
    program = Program()
    large = [program.gather(program.input(256 << 10)) for _ in range(2)]
    small = [program.gather(program.input(15 << 10)) for _ in range(40)]  # 120 KB of results
    assert program.joined(*large, *small) == [17, 17, 6]


def test_kinds_types_reductions_and_groups_are_separate() -> None:
    program = Program(torch.int64)
    x, small = program.input(4), program.input(4, dtype=torch.int32)
    made = [
        *(program.reduce(x), program.reduce(x, "max"), program.reduce(small)),
        *(program.gather(x), program.reduce(x), program.gather(x)),
    ]
    assert program.joined(*made) == [2, 2]


def test_collective_of_another_group_stays_in_its_place() -> None:
    """A rank of the other group alone has not the others in its graph."""
    program = Program()
    x = program.input(4)
    groups = ("0", "0", "1", "0", "0")
    assert program.joined(*(program.gather(x, group) for group in groups)) == [2, 2]
    assert [n.args[2] for n in program.made.graph.nodes if is_waited(n.target)] == ["0", "1", "0"]


def test_no_call_moves_past_a_write() -> None:
    program = Program()
    x, y = program.input(4), program.input(4)
    used = program.call(aten.add.Tensor, y, program.gather(x, ranks=1))
    program.call(aten.copy_.default, y, x)
    assert program.joined(used, program.gather(x, ranks=1)) == []


def test_call_that_may_communicate_stays_in_its_place() -> None:
    program = Program()
    x = program.input(4)
    first = program.gather(x)
    program.graph.call_function(rooted_operator("barrier"), (x, "0"))
    assert program.joined(first, program.gather(x)) == []


@pytest.mark.parametrize(
    ("dtype", "by", "ranks", "expected"),
    [
        (torch.float32, "sum", 2, [2]),
        (torch.bfloat16, "avg", 2, [2]),
        (torch.float32, "max", 2, []),  # of NaN and a number, or of two zeros
        (torch.float32, "sum", 4, []),
        (torch.int64, "sum", 4, [2]),
        (torch.int64, "avg", 4, []),
    ],
)
def test_reductions_are_joined_where_their_order_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, by: str, ranks: int, expected: list[int]
) -> None:
    monkeypatch.setattr(joining, "group_named", of_ranks(ranks))
    program = Program(dtype)
    assert program.joined(*(program.reduce(program.input(3), by) for _ in range(2))) == expected


def test_other_reductions_are_joined_if_they_need_not_be_exact() -> None:
    program = Program()
    made = [program.reduce(program.input(3)) for _ in range(5)]
    assert program.joined(*made, exact=False) == [5]


def test_sizes_of_other_tensors_decide_nothing() -> None:
    """Ranks may have batches of different sizes; they must join alike."""

    def joined(rows: int) -> list[int]:
        program = Program()
        batch, scale = program.input(rows, 64), program.input(1)
        results = []
        for _ in range(3):
            used = program.call(aten.mul.Tensor, batch, program.gather(scale), shape=(rows, 64))
            results.append(used)
        return program.joined(*results)

    assert joined(1) == joined(1 << 24) == [3]


def test_symbolic_sizes_become_predicates() -> None:
    program, symbol = Program(), fresh_symbol("rows", Interval(2, 1 << 20), "x")
    of_graph, own = fresh_sizes({symbol: symbol.range}, [4])
    rows: Any = own[symbol]
    outputs = [program.gather(program.input(rows, 8)) for _ in range(3)]
    program.graph.output(tuple(outputs))
    predicates, known = fresh_sizes(of_graph.ranges, [4], renames=True)
    found = join_collectives(LazyModule({}, program.graph), known).found
    assert [(one.count, one.size) for one in found] == [(3, 3 * 2 * 4 * 8 * 4)]
    assert predicates.holds_for((5,))
    assert predicates.holds_for((2048,))  # 128 KB of results
    assert not predicates.holds_for((2049,))
    assert not of_graph.relations


def test_option_excludes_eager_runs() -> None:
    for options in (Options(collectives="joined"), make_options({"collectives": "joined"})):
        assert (options.keep, options.background, options.on_error) == ("compiled", False, "raise")
    with pytest.raises(OptionError, match="collectives"):
        Options(collectives="some")


def test_recompile_limit_raises() -> None:
    import jitmagic

    def scaled(x: torch.Tensor, by: str) -> torch.Tensor:
        return x * len(by)

    given = {"collectives": "joined", "recompile_limit": 2, "persist": False}
    tagged, x = jitmagic.jit(scaled, options=given), torch.ones(3)
    calls: Iterable[str] = ("a", "bb")
    assert [float(tagged(x, text)[0]) for text in calls] == [1.0, 2.0]
    with pytest.raises(Unsupported, match='collectives="joined" forbids'):
        tagged(x, "ccc")


def test_numbers_of_elements_add_up() -> None:
    program = Program()
    shapes = ((3, 5), (7,), (2, 0), ())
    program.joined(*(program.gather(program.input(*shape)) for shape in shapes))
    (joined,) = (n for n in program.made.graph.nodes if is_waited(n.target))
    assert joined.meta["spec"].shape == (2 * sum(map(math.prod, shapes)),)
