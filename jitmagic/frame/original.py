"""Original: the user's code that a dispatcher stands for, and ways to run it as plain Python.

Input: a function, or a code object with its namespace. Output: snapshots to trace, and the call
itself with the dispatcher's values (parameters in slot order, then closure cells). Invariant: holds
the code and globals, never the function. A function whose closure refers to its own stub would
otherwise never be freed, because the garbage collector does not see through code objects.
"""

from __future__ import annotations

import inspect
import linecache
import weakref
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

from ..bytecode import FrameSnapshot
from ..bytecode.suspension import HERE
from ..errors import UserLine, plain_title
from ..torch_types import AnyFunction, Namespace, Values
from .native import Spread, call_plainly

__all__ = ["Original", "PieceOriginal", "gives_back_always", "parameter_count"]


class Original:
    """One code object in one namespace."""

    __slots__ = ("_code", "_function", "builtins", "is_weak", "name", "namespace", "qualname")

    def __init__(
        self, code: CodeType, namespace: Namespace, *, name: str = "", weak: bool = False
    ) -> None:
        """`weak`: refer to `code` weakly, because the code owns the handle, which owns this."""
        self._code: Callable[[], CodeType | None] = weakref.ref(code) if weak else lambda: code
        self.is_weak, self.namespace = weak, namespace
        self.name, self.qualname = name or code.co_name, code.co_qualname
        keep = not weak and not code.co_freevars
        cells = tuple(CellType() for _ in code.co_freevars)
        function = FunctionType(code, namespace, self.name, closure=cells)
        self.builtins: Namespace = function.__builtins__  # type: ignore[attr-defined]
        self._function = function if keep else None

    @classmethod
    def of_function(cls, function: FunctionType, code: CodeType | None = None) -> Original:
        """Create it for the code a function has now, or for code that it is about to get."""
        return cls(code or function.__code__, function.__globals__, name=function.__name__)

    @property
    def code(self) -> CodeType:
        """The code object; raises ReferenceError if weakly held code is gone."""
        code = self._code()
        if code is None:
            raise ReferenceError(f"the code of {self.qualname} is gone")
        return code

    @property
    def label(self) -> str:
        """The user's name for it: a method with its class, a notebook's cell as `<cell>`, a wrapper
        under the name that functools.wraps gave it.
        """
        code = self.code
        name = code.co_qualname.rpartition("<locals>.")[2]
        return self.name if name == "<module>" or self.name != code.co_name else name

    @property
    def first_line(self) -> int:
        """The line where it begins or, for a resume function, continues."""
        code = self.code
        lines = (line for _, _, line in code.co_lines() if line is not None)
        return next(lines, code.co_firstlineno)

    def has_line(self, where: UserLine) -> bool:
        """Return whether `where` is a line of this code."""
        code = self.code
        lines = {line for *_, line in code.co_lines()}
        return where.filename == code.co_filename and where.lineno in lines

    @property
    def title(self) -> str:
        """The name shown by profilers: `step (model.py:12)`."""
        where = UserLine(self.code.co_filename, self.first_line)
        return plain_title(f"{self.label} ({where.file}:{where.lineno})")

    @property
    def is_alive(self) -> bool:
        """False once weakly held code is gone."""
        return self._code() is not None

    @property
    def takes_positionals_only(self) -> bool:
        """True if the dispatcher's values are the call's positional arguments, one to one."""
        code = self.code
        stars = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
        return not (code.co_flags & stars or code.co_kwonlyargcount or code.co_freevars)

    @property
    def plain(self) -> AnyFunction:
        """The cheapest callable that runs it on the dispatcher's values."""
        if self.is_weak:
            return self
        if self.takes_positionals_only:
            return FunctionType(self.code, self.namespace, self.name)
        return Spread(self.code, self.namespace)

    @property
    def arity(self) -> int:
        """Number of values that the dispatcher passes: parameters, then closure cells."""
        return parameter_count(self.code) + len(self.code.co_freevars)

    @property
    def source_lines(self) -> tuple[str, int, tuple[str, ...]]:
        """File, first line number and lines of the code; no lines if the source is unknown."""
        code = self.code
        numbers = [line for *_, line in code.co_lines() if line]
        last = max(numbers, default=code.co_firstlineno)
        first = code.co_firstlineno
        if code.co_name == "<module>":  # a cell: start at its first statement
            first = min((line for line in numbers if line > first), default=first)
        lines = linecache.getlines(code.co_filename)[first - 1 : last]
        return code.co_filename, first, tuple(line.rstrip("\n") for line in lines)

    def snapshot(self, values: tuple[Any, ...]) -> FrameSnapshot:
        """Return the frame as it is about to begin."""
        code, count = self.code, parameter_count(self.code)
        return FrameSnapshot(
            code=code,
            args=values[:count],
            cells=values[count:],
            globals=self.namespace,
            builtins=self.builtins,
            name=self.name,
            qualname=self.qualname,
        )

    def run(self, values: Values, family: object = None) -> object:
        """Run as plain Python; callees are hooked for `family` unless it is None."""
        args, kwargs, cells = _spread(self.code, values)
        function = self._function
        if function is None:
            function = FunctionType(self.code, self.namespace, self.name, None, cells)
        return call_plainly(function, args, kwargs, family)

    def __call__(self, *values: object) -> object:
        """Call `run` with the dispatcher's values as arguments: the entry point for residuals."""
        return self.run(values)


class PieceOriginal(Original):
    """A piece of a generator, which can give its values back: the generator's frame then runs the
    code itself.
    """

    __slots__ = ("gives_back",)

    def __init__(self, code: CodeType, namespace: Namespace, *, name: str) -> None:
        super().__init__(code, namespace, name=name)
        self.gives_back = False  # always

    @property
    def plain(self) -> AnyFunction:
        return _give_back if self.gives_back else super().plain

    def run(self, values: Values, family: object = None) -> object:
        """Give the values back, unless callees are to be hooked."""
        if family is None or self.gives_back:
            return (HERE, *values)
        return super().run(values, family)


def gives_back_always(original: Original) -> bool:
    """Let the generator's frame run a piece from now on; return False for other code."""
    if isinstance(original, PieceOriginal):
        original.gives_back = True
    return isinstance(original, PieceOriginal)


def _give_back(*values: object) -> tuple[object, ...]:
    return (HERE, *values)


def parameter_count(code: CodeType) -> int:
    """Return the number of values of the parameters; `*args` is one, and so is `**kwargs`."""
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + stars


def _spread(
    code: CodeType, values: tuple[Any, ...]
) -> tuple[Values, dict[str, Any] | None, tuple[CellType, ...]]:
    """Return positional arguments, keywords and cells of the call that has these values.

    It calls no builtin: the program may have replaced some and would see each call of those.
    """
    end = code.co_argcount + code.co_kwonlyargcount
    args, kwargs, at = values[: code.co_argcount], {}, code.co_argcount
    for name in code.co_varnames[at:end]:
        kwargs[name] = values[at]
        at += 1
    if code.co_flags & inspect.CO_VARARGS:
        args += values[end]
        end += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(values[end])
        end += 1
    return args, kwargs or None, values[end:]
