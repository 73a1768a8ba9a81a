"""Control flow of a Body: successors, stack depths, liveness, definite assignment, dead code.

Input: a Body. Output: facts keyed by Instruction (identity). The analyses do not change the body;
only `drop_unreachable` and `secure_loads` edit it. Invariant: every answer is conservative. An
instruction in an exception region may raise before it has any effect, and a call that can inspect
the frame's variables (locals, eval, ...) reads all of them.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from ..errors import BytecodeError
from ..lazy_dataclass import dataclass
from .instruction import Body, ExceptionRegion, Instruction
from .versions import RUNNING, Kind

__all__ = [
    "Block",
    "basic_blocks",
    "call_group",
    "definitely_bound",
    "drop_unreachable",
    "live_locals",
    "liveness",
    "loop_landings",
    "maximum_depth",
    "reachable",
    "reached_from",
    "regions_by_instruction",
    "secure_loads",
    "stack_depths",
    "stack_effect",
    "successors",
]

# Builtins that read the variables of the calling frame.
_FRAME_READERS = frozenset({"locals", "vars", "dir", "eval", "exec"})


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions that run one after the other, all in the same `region`."""

    instructions: tuple[Instruction, ...]
    region: ExceptionRegion | None


def regions_by_instruction(body: Body) -> dict[Instruction, ExceptionRegion]:
    """Return the innermost region of each instruction that is in one."""
    if not body.regions:
        return {}
    index = {instruction: i for i, instruction in enumerate(body.instructions)}
    spans = []
    for region in body.regions:
        first, last = index.get(region.start), index.get(region.end_inclusive)
        if first is None or last is None or region.target not in index or last < first:
            raise BytecodeError(f"{body.qualname}: an exception region points outside of the body")
        spans.append((last - first, first, last, region))
    spans.sort(key=lambda span: -span[0])
    return {
        instruction: region
        for _, first, last, region in spans
        for instruction in body.instructions[first : last + 1]
    }


def successors(body: Body) -> dict[Instruction, list[Instruction]]:
    """Return the possible next instructions of each: fall-through, jump target, handler."""
    regions = regions_by_instruction(body)
    following = [*body.instructions[1:], None]
    result: dict[Instruction, list[Instruction]] = {}
    for instruction, after in zip(body.instructions, following, strict=True):
        ways = []
        if instruction.op not in RUNNING.no_fallthrough:
            if after is None:
                raise BytecodeError(
                    f"{body.qualname}: control runs off the end after {instruction}"
                )
            ways.append(after)
        if instruction.target is not None:
            ways.append(instruction.target)
        if instruction in regions:
            ways.append(regions[instruction].target)
        result[instruction] = ways
    return result


def reachable(body: Body) -> set[Instruction]:
    """Return the instructions that control can reach from the start."""
    return reached_from(successors(body), body.instructions[:1])


def reached_from(
    ways: Mapping[Instruction, Sequence[Instruction]], starts: Iterable[Instruction]
) -> set[Instruction]:
    """Return the instructions that control can reach from these; `ways`: result of `successors`."""
    seen: set[Instruction] = set()
    work = list(starts)
    while work:
        instruction = work.pop()
        if instruction not in seen:
            seen.add(instruction)
            work.extend(ways[instruction])
    return seen


def drop_unreachable(body: Body) -> None:
    """Remove unreachable instructions and shrink the regions around them."""
    keep = reachable(body)
    keep |= loop_landings(body, keep)
    if len(keep) == len(body.instructions):
        return
    body.regions = body.regions_within(keep)
    body.instructions = [instruction for instruction in body.instructions if instruction in keep]


def loop_landings(body: Body, kept: set[Instruction]) -> set[Instruction]:
    """Return the instructions that the interpreter skips at the target of each kept FOR_ITER.

    CPython jumps over END_FOR there without looking, so they must stay although they never run.
    """
    if not RUNNING.loop_landing:
        return set()
    index = {instruction: i for i, instruction in enumerate(body.instructions)}
    length = len(RUNNING.loop_landing)
    landings: set[Instruction] = set()
    for instruction in body.instructions:
        if instruction in kept and instruction.op == "FOR_ITER" and instruction.target is not None:
            first = index[instruction.target]
            landings.update(body.instructions[first : first + length])
    return landings


def basic_blocks(body: Body) -> list[Block]:
    """Split at jump targets, handlers and region edges, and after jumps and returns."""
    regions = regions_by_instruction(body)
    heads = {i.target for i in body.instructions if i.target} | {r.target for r in body.regions}
    blocks: list[Block] = []
    current: list[Instruction] = []
    for instruction in body.instructions:
        region = regions.get(instruction)
        if current and (instruction in heads or region is not regions.get(current[-1])):
            blocks.append(Block(tuple(current), regions.get(current[-1])))
            current = []
        current.append(instruction)
        if instruction.target is not None or instruction.op in RUNNING.no_fallthrough:
            blocks.append(Block(tuple(current), region))
            current = []
    if current:
        blocks.append(Block(tuple(current), regions.get(current[-1])))
    return blocks


def call_group(body: Body, breaking: Instruction) -> list[Instruction]:
    """Return the breaking instruction after the KW_NAMES and PRECALL of a call.

    They belong together: the interpreter keeps the keyword names in between.
    """
    last = first = body.instructions.index(breaking)
    while first and body.instructions[first - 1].op in ("KW_NAMES", "PRECALL"):
        first -= 1
    return body.instructions[first : last + 1]


# ---------------------------------------------------------------------------------------- the stack


def stack_effect(instruction: Instruction, *, jump: bool) -> int:
    """Return the change of the stack depth with or without a jump."""
    argument = int(instruction.flag)
    if RUNNING.kind(instruction.op) is Kind.INT and instruction.op not in RUNNING.effects:
        argument = _int_argument(instruction)
    return _effect(instruction.op, argument, jump)


@lru_cache(maxsize=4096)
def _effect(op: str, argument: int, jump: bool) -> int:
    if op in RUNNING.effects:
        return RUNNING.effects[op]
    real = RUNNING.real_op(op) or RUNNING.real_op(op, backward=True)
    if real is None:
        raise BytecodeError(f"{op} does not exist on Python {'.'.join(map(str, RUNNING.version))}")
    if RUNNING.kind(op) not in (Kind.INT, Kind.NAME):
        argument = 0
    number = RUNNING.opcodes[real]
    return dis.stack_effect(number, argument if number >= dis.HAVE_ARGUMENT else None, jump=jump)


def _int_argument(instruction: Instruction) -> int:
    if not isinstance(instruction.arg, int):
        raise BytecodeError(f"{instruction} needs an int")
    return instruction.arg


def stack_depths(body: Body) -> dict[Instruction, int]:
    """Return the stack depth before each reachable instruction; raises if paths disagree."""
    regions = regions_by_instruction(body)
    following = dict(zip(body.instructions, body.instructions[1:], strict=False))
    depths: dict[Instruction, int] = {}
    work = [(instruction, 0) for instruction in body.instructions[:1]]
    while work:
        instruction, depth = work.pop()
        if instruction in depths:
            if depths[instruction] != depth:
                raise BytecodeError(
                    f"{body.qualname}: {instruction} is reached with {depths[instruction]} and "
                    f"with {depth} values on the stack"
                )
            continue
        depths[instruction] = depth
        region = regions.get(instruction)
        if region is not None:
            work.append((region.target, region.depth + region.lasti + 1))
        if instruction.target is not None:
            work.append((instruction.target, _after(body, instruction, depth, jump=True)))
        if instruction.op not in RUNNING.no_fallthrough:
            after = _after(body, instruction, depth, jump=False)
            if instruction not in following:
                raise BytecodeError(
                    f"{body.qualname}: control runs off the end after {instruction}"
                )
            work.append((following[instruction], after))
    return depths


def _after(body: Body, instruction: Instruction, depth: int, *, jump: bool) -> int:
    after = depth + stack_effect(instruction, jump=jump)
    if after < 0:
        raise BytecodeError(f"{body.qualname}: {instruction} pops from an empty stack")
    return after


def maximum_depth(body: Body) -> int:
    """Return the stack size that this body needs."""
    deepest = 1
    for instruction, depth in stack_depths(body).items():
        effect = stack_effect(instruction, jump=False)
        if instruction.target is not None:
            effect = max(effect, stack_effect(instruction, jump=True))
        deepest = max(deepest, depth + effect)
    return deepest


# ------------------------------------------------------------------------------------ the variables


def live_locals(body: Body, instruction: Instruction) -> frozenset[str]:
    """Return the variables whose value may still be read from `instruction` on.

    Includes cells and free variables (names in `body.freevars` are always bound through the
    closure) and reads in exception handlers. Use `liveness` for many instructions.
    """
    return liveness(body)[instruction]


def liveness(body: Body) -> Mapping[Instruction, frozenset[str]]:
    """Return `live_locals` of every instruction, computed in one backward fixpoint."""
    names = body.slots()
    bit = {name: 1 << i for i, name in enumerate(names)}
    effects = {i: _reads_and_writes(body, i, bit) for i in body.instructions}
    ways = successors(body)
    live = dict.fromkeys(body.instructions, 0)
    handlers = {i: r.target for i, r in regions_by_instruction(body).items()}

    def before(instruction: Instruction) -> int:
        reads, writes = effects[instruction]
        after = 0
        for way in ways[instruction]:
            after |= live[way]
        # It may raise before it writes, so its handler sees the old value.
        unwound = live[handlers[instruction]] if instruction in handlers else 0
        return reads | after & ~writes | unwound

    _until_stable(reversed(body.instructions), live, before)
    return _Live(names, live)


class _Live(Mapping[Instruction, frozenset[str]]):
    """Live variables by instruction, stored as bit masks; a set is made only when it is read.

    A body with n variables has about n different sets of up to n names, and few are read.
    """

    def __init__(self, names: Sequence[str], masks: Mapping[Instruction, int]) -> None:
        self._names, self._masks = names, masks
        self._sets: dict[int, frozenset[str]] = {}

    def __getitem__(self, instruction: Instruction) -> frozenset[str]:
        mask = self._masks[instruction]
        if mask not in self._sets:
            live = (name for i, name in enumerate(self._names) if mask >> i & 1)
            self._sets[mask] = frozenset(live)
        return self._sets[mask]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)


def _until_stable(
    order: Iterable[Instruction],
    state: dict[Instruction, int],
    update: Callable[[Instruction], int],
) -> None:
    sequence, changed = list(order), True
    while changed:
        changed = False
        for instruction in sequence:
            value = update(instruction)
            if value != state[instruction]:
                state[instruction] = value
                changed = True


def _reads_and_writes(body: Body, instruction: Instruction, bit: dict[str, int]) -> tuple[int, int]:
    """Return masks of the variables an instruction reads and of those it overwrites."""
    op, kind = instruction.op, RUNNING.kind(instruction.op)
    if kind is Kind.LOCAL:
        mask = bit[str(instruction.arg)]
        return (0 if op == "STORE_FAST" else mask), (0 if op.startswith("LOAD") else mask)
    if kind is Kind.CELL:
        # Every access to the contents, even a store, reads the cell object in the slot.
        return bit[str(instruction.arg)], 0
    if op in ("LOAD_GLOBAL", "LOAD_NAME"):
        return _frame_reads(body, str(instruction.arg), bit), 0
    return 0, 0


def _frame_reads(body: Body, name: str, bit: dict[str, int]) -> int:
    """Return a mask of the variables that a builtin of that name reads from this frame."""
    if name in _FRAME_READERS:
        return sum(bit.values())
    if name == "super":
        hidden = [*body.parameters[:1], "__class__"]
        return sum(bit[variable] for variable in hidden if variable in bit)
    return 0


def secure_loads(body: Body) -> None:
    """Replace LOAD_FAST of a possibly unbound variable by LOAD_FAST_CHECK.

    Since 3.12 LOAD_FAST does not check: CPython's compiler proves that the variable is bound, else
    the interpreter would push NULL. Code that was cut or is entered in the middle voids that proof.
    It does nothing on 3.11, where LOAD_FAST checks.
    """
    if "LOAD_FAST_CHECK" not in RUNNING.opcodes:
        return
    bound = definitely_bound(body)
    bit = {name: 1 << i for i, name in enumerate(body.slots())}
    for instruction in body.instructions:
        if instruction.op == "LOAD_FAST" and not bound[instruction] & bit[str(instruction.arg)]:
            instruction.op = "LOAD_FAST_CHECK"


def definitely_bound(body: Body) -> dict[Instruction, int]:
    """Return masks (bits in the order of `slots`) of the variables bound on every path to each."""
    bit = {name: 1 << i for i, name in enumerate(body.slots())}
    everything = (1 << len(bit)) - 1
    # LOAD_FAST_AND_CLEAR may save an unbound slot, which a later STORE_FAST restores.
    cleared = {i.arg for i in body.instructions if i.op == "LOAD_FAST_AND_CLEAR"}
    sources: dict[Instruction, list[tuple[Instruction, bool]]] = {i: [] for i in body.instructions}
    handlers = {i: r.target for i, r in regions_by_instruction(body).items()}
    for instruction, ways in successors(body).items():
        for way in ways:
            sources[way].append((instruction, way is handlers.get(instruction)))
    entry = sum(bit[name] for name in (*body.parameters, *body.freevars))
    bound = dict.fromkeys(body.instructions, everything)  # the greatest fixpoint: only shrinks

    def after(instruction: Instruction) -> int:
        mask = bit.get(str(instruction.arg), 0)
        if instruction.op == "MAKE_CELL" or (
            instruction.op == "STORE_FAST" and instruction.arg not in cleared
        ):
            return bound[instruction] | mask
        if instruction.op in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR", "STORE_FAST"):
            return bound[instruction] & ~mask
        return bound[instruction]

    def before(instruction: Instruction) -> int:
        value = entry if instruction is body.instructions[0] else everything
        for source, unwinding in sources[instruction]:
            # An instruction that raises may not have stored yet, but may have deleted already.
            value &= after(source) & bound[source] if unwinding else after(source)
        return value

    _until_stable(body.instructions, bound, before)
    return bound
