"""generate(seed) -> Program: random templates, kept when they run on the tensors at hand.

Every statement is executed while the program is written, so that later ones know the shapes and
dtypes of earlier results and few programs are nonsense. The same seed gives the same program.
"""

from __future__ import annotations

import random
import re
import types
import warnings
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor

from . import construct_tables, network_tables, python_tables, state_tables, tensor_tables
from .inputs import LAYOUTS
from .program import BACKWARDS, HEAD, KINDS, Program, load
from .stacks import stack
from .write_tables import STATEMENTS

__all__ = ["generate"]

BLOCKS = (python_tables.BLOCKS + construct_tables.BLOCKS, state_tables.BLOCKS)
SELF_BLOCKS = python_tables.SELF_BLOCKS | {
    "module": python_tables.SELF_BLOCKS["module"] + construct_tables.MODULE_BLOCKS,
    "method": python_tables.SELF_BLOCKS["method"] + state_tables.METHOD_BLOCKS,
}
EXPRESSIONS = tensor_tables.EXPRESSIONS | network_tables.EXPRESSIONS
FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int8", "uint8", "int16")
MOST = 40_000  # elements a tensor of a program may have
KEEP_RAISING = 0.01  # of the statements that raise stay, as the last of their program
NUMBERS = ("2", "0.5", "-1", "3", "0", "1.5", "-2.5", "True", "1e-3", "7")
SLICES = ("1:", ":-1", "::2", "-2:", ":2", "1::2", "1:-1", "0:0", "-3:-1", ":")
_EAGER = ("squeeze_", "t_", "swapaxes_", "transpose_", "resize_", "set_")  # whole frames fall back
_HOLE = re.compile(r"\$([a-zA-Z]+)(\d*)")


class Unfit(Exception):
    """No tensor of the kind that a template asks for."""


def generate(seed: int) -> Program:
    """The program of a seed."""
    return _Writer(random.Random(seed)).program()


class _Writer:
    """One program in the making: its names, what they hold, the statements so far."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kind = rng.choices(KINDS, (6, 1, 1, 1))[0]
        self.statements: list[str] = []
        self.space: dict[str, Any] = {}
        self.made = 0
        self.families = rng.sample(sorted(EXPRESSIONS), rng.randrange(2, 7))
        self.python = rng.choice([0.0, 0.2, 0.2, 0.5])
        self.writes = rng.choice([0.0, 0.15, 0.3])

    # ------------------------------------------------------------------------------------ the whole

    def program(self) -> Program:
        arguments, calls = self._calls()
        self._enter(arguments, calls[0])
        self.made = len(self.stacked)  # the names v1, v2, ... that it takes
        for text in self.stacked:
            if self._try(text):
                break
        wanted = len(self.statements) + self._length()
        for _ in range(150):
            if len(self.statements) >= wanted:
                break
            if self._step():
                break
        results = self._results(arguments)
        shape = self.rng.choice(["tuple", "tuple", "single", "list", "dict", "pair"])
        if shape == "single":
            results = results[:1]
        back = self.rng.choice(BACKWARDS) if self.rng.random() < 0.6 else BACKWARDS[0]
        return Program(arguments, tuple(self.statements), results, calls, self.kind, shape, back)

    def _length(self) -> int:
        """Statements to add: a few, seldom enough of them to fill several kernels."""
        if self.stacked:
            return self.rng.choice([0, 0, 1, 2, 4])
        return self.rng.randrange(20, 40) if self.rng.random() < 0.05 else self.rng.randrange(1, 10)

    def _results(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        made = [n for n in self.space if re.fullmatch(r"v\d+", n)]
        chosen = made[-1:] + self.rng.sample(made, min(len(made), self.rng.randrange(3)))
        if self.rng.random() < 0.15:
            chosen.append(self.rng.choice(arguments))
        return tuple(dict.fromkeys(chosen)) or ("x0",)

    def _enter(self, arguments: tuple[str, ...], call: tuple[str, ...]) -> None:
        exec(HEAD, self.space)
        self.space["jitmagic"] = types.SimpleNamespace(graph_break=lambda: None)
        values = eval(f"({', '.join(call)},)", self.space)
        self.space.update(zip(arguments, values, strict=True))
        self.space.update(self=_stand_in(), torch=torch)
        self.names = [n for n in arguments if isinstance(self.space[n], Tensor)]
        torch.manual_seed(0)

    # --------------------------------------------------------------------------------------- inputs

    def _calls(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        rng = self.rng
        count = rng.choice([1, 1, 2, 2, 3])
        self.grad = rng.random() < 0.3
        self.trained = {n for n in range(1, 12) if rng.random() < 0.4}
        self.values = rng.choices(["normal", "special", "positive"], (7, 1, 1))[0]
        shapes, dtypes = self._shapes(count), [self._input_dtype() for _ in range(count)]
        layouts = [rng.choice(LAYOUTS) if rng.random() < 0.35 else "plain" for _ in range(count)]
        alias = count > 1 and rng.random() < 0.1
        self.stacked: tuple[str, ...] = ()
        if rng.random() < 0.15:
            layers = stack(rng)
            shapes, dtypes, layouts = map(list, (layers.shapes, layers.dtypes, layers.layouts))
            self.stacked, alias, count = layers.statements, False, len(shapes)
        names = tuple(f"x{n}" for n in range(count))
        first = self._call(shapes, dtypes, layouts, alias, rng.randrange(100))
        calls = [first, first] if rng.random() < 0.5 else [first]
        for _ in range(rng.choice([0, 0, 1, 2])):
            change = rng.choice(["values", "shape", "dtype", "layout", "number"])
            new_shapes = self._other_shapes(shapes) if change == "shape" else shapes
            new_dtypes = [self._input_dtype() for _ in dtypes] if change == "dtype" else dtypes
            new_layouts = [rng.choice(LAYOUTS) for _ in layouts] if change == "layout" else layouts
            k = "5" if change == "number" else "2"
            calls.append(
                self._call(new_shapes, new_dtypes, new_layouts, alias, rng.randrange(100), k)
            )
        return (*names, "k", "items"), tuple(calls)

    def _input_dtype(self) -> str:
        roll = self.rng.random()
        if roll < 0.7:
            return self.rng.choice(FLOATS)
        if roll < 0.9:
            return self.rng.choice(INTEGERS)
        return "bool" if roll < 0.96 else self.rng.choice(["complex64", "complex128"])

    def _shapes(self, count: int) -> list[tuple[int, ...]]:
        rng = self.rng
        r, c = (rng.choice([2, 3, 4, 5, 8, 17, 33, 64]) for _ in range(2))
        if rng.random() < 0.05:
            r, c = rng.choice([0, 1]), rng.choice([0, 1, 150])
        if rng.random() < 0.03:
            r, c = 130, 200
        options = [(r, c), (r, c), (r, c), (c,), (r, 1), (1, c), (), (2, r, c), (c, r), (1,)]
        if rng.random() < 0.3:
            options = [(2, r, c), (3, c, r), (2, 3, r, c), (1, c, 4, r), (r, c), (c,)]
        return [rng.choice(options) for _ in range(count)]

    def _other_shapes(self, shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        if not self.stacked:
            return self._shapes(len(shapes))
        return [(self.rng.choice([1, 5, 40]), shapes[0][1]), *shapes[1:]]

    def _call(
        self, shapes: Any, dtypes: Any, layouts: Any, alias: bool, seed: int, k: str = "2"
    ) -> tuple[str, ...]:
        made: list[str] = []
        for n, (shape, dtype, layout) in enumerate(zip(shapes, dtypes, layouts, strict=True)):
            text = f"tensor({shape}, torch.{dtype}, seed={seed + n}"
            text += f', layout="{layout}"' if layout != "plain" else ""
            text += f', values="{self.values}"' if self.values != "normal" else ""
            floating = dtype.startswith(("float", "bfloat"))
            needs_grad = self.grad and floating and (n == 0 or n in self.trained)
            text += ", grad=True)" if needs_grad else ")"
            made.append(text)
        if alias:
            made[0] = f"(base := {made[0]})"
            made[1] = self.rng.choice(
                ["base", "base[1:]", "base.t()", "base.view(-1)", "base[..., :1]"]
            )
            if len(shapes[0]) == 0 or layouts[0] != "plain" or len(shapes[0]) > 2:
                made[1] = "base"
        return (*made, k, self.rng.choice(["[]", "[1, 2]", "[torch.ones(2)]"]))

    # ----------------------------------------------------------------------------------- statements

    def _step(self) -> bool:
        """Add one statement that runs; True when it raised and was kept."""
        rng = self.rng
        roll = rng.random()
        try:
            if roll < self.python:
                extra = SELF_BLOCKS.get(self.kind)
                text = rng.choice(extra if extra and rng.random() < 0.4 else rng.choice(BLOCKS))
                if "global " in text and "global " in "".join(self.statements):
                    raise Unfit  # a second declaration would come after a use
            elif roll < self.python + self.writes:
                text = rng.choice(STATEMENTS)
                if text.split("(")[0].endswith(_EAGER) or "out=" in text or "_as(" in text:
                    text = text if rng.random() < 0.1 else rng.choice(STATEMENTS)
                if "$o" in text:
                    text = "$v = torch.empty(0)\n" + text.replace("$o", "$v")
            else:
                text = f"$v = {rng.choice(EXPRESSIONS[rng.choice(self.families)])}"
            return self._try(self._fill(text))
        except Unfit:
            return False

    def _try(self, text: str) -> bool:
        probe = text if "def " in text else re.sub(r"(?m)^(\s*)return .*$", r"\1pass", text)
        before = dict(self.space)
        try:
            with redirect_stdout(StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(probe, self.space)
            self._check_sizes()
        except Exception as error:
            _restore(self.space, before)
            if isinstance(error, Unfit) or self.rng.random() >= KEEP_RAISING:
                return False
            self.statements.append(text)
            return True
        self.statements.append(text)
        for name, value in self.space.items():
            if re.fullmatch(r"v\d+", name) and isinstance(value, Tensor):
                self.names = [n for n in self.names if n != name or name in before]
                if name not in self.names:
                    self.names.append(name)
        return False

    def _check_sizes(self) -> None:
        for name, value in self.space.items():
            if (
                re.fullmatch(r"[vx]\d+", name)
                and isinstance(value, Tensor)
                and value.numel() > MOST
            ):
                raise Unfit

    # ---------------------------------------------------------------------------------------- holes

    def _fill(self, text: str) -> str:
        """Replace the placeholders; the same one is the same thing throughout a template."""
        holes: dict[str, str] = {}
        self.subject = self._pick(lambda t: True)
        for found in _HOLE.finditer(text):  # subjects first: partners and dims depend on them
            if found[1] in _KINDS_OF:
                if found[0] not in holes:
                    self.subject = holes[found[0]] = self._pick(_KINDS_OF[found[1]])
        for found in _HOLE.finditer(text):
            if found[0] not in holes:
                holes[found[0]] = self._hole(found[1])
        return _HOLE.sub(lambda found: holes[found[0]], text)

    def _pick(self, fits: Any) -> str:
        names = [n for n in self.names if fits(self.space[n])]
        if not names:
            raise Unfit
        return self.rng.choice(names[-3:] if self.rng.random() < 0.5 else names)

    def _hole(self, kind: str) -> str:
        rng = self.rng
        value = self.space[self.subject]
        match kind:
            case "y":
                return self._partner(value)
            case "s":
                return rng.choice(NUMBERS)
            case "n":
                return str(rng.randrange(0, 3))
            case "d":
                return str(rng.randrange(-value.dim(), value.dim()) if value.dim() else 0)
            case "sl":
                return rng.choice(SLICES)
            case "t":
                return f"torch.{rng.choice((*FLOATS[2:], *INTEGERS, 'bool'))}"
            case "ti":
                return f"torch.{rng.choice(INTEGERS)}"
            case "tf":
                return f"torch.{rng.choice(FLOATS[2:])}"
            case "v" | "w":
                self.made += 1
                return f"v{self.made}"
            case "e":
                return self._inner_expression()
        raise ValueError(f"no placeholder ${kind}")

    def _inner_expression(self) -> str:
        subject, text = self.subject, self.rng.choice(EXPRESSIONS[self.rng.choice(self.families)])
        filled = self._fill(text)
        self.subject = subject
        return filled

    def _partner(self, value: Tensor) -> str:
        fitting = []
        for name in self.names:
            try:
                torch.broadcast_shapes(value.shape, self.space[name].shape)
            except RuntimeError:
                continue
            fitting.append(name)
        return self.rng.choice(fitting or self.names)


_KINDS_OF: dict[str, Any] = {
    "x": lambda t: True,
    "f": lambda t: t.is_floating_point(),
    "i": lambda t: not (t.is_floating_point() or t.is_complex()),
    "j": lambda t: not (t.is_floating_point() or t.is_complex()),
    "b": lambda t: t.dtype == torch.bool,
    "c": lambda t: t.is_complex(),
    "m": lambda t: t.dim() == 2,
    "q": lambda t: t.dim() == 3,
    "r": lambda t: t.dim() == 4,
}


def _stand_in() -> Any:
    """`self` while a module's or method's statements are tried."""
    space = load(Program((), (), ("None",), (), "module").source())
    net = space["build"]()
    net.items = []
    return net


def _restore(space: dict[str, Any], before: dict[str, Any]) -> None:
    for name in set(space) - set(before):
        del space[name]
    space.update(before)
