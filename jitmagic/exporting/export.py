"""Defines jitmagic.export: a call as a torch.export.ExportedProgram.

    program = jitmagic.export(fn_or_module, dynamic={"x": {0: (2, 64)}})(x, mask=mask)

In: a function or module, and example arguments. Out: the exported program. The function is not
called, and no live object changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..frame.tag import original_of
from .call import ExampleCall
from .capture import capture
from .program import exported_program

if TYPE_CHECKING:
    from ..compat.export import ExportedProgram

__all__ = ["export"]


def export(fn: object, /, *, dynamic: object = None) -> Callable[..., ExportedProgram]:
    """Return a function that takes example arguments of `fn` and returns its ExportedProgram.

    fn: a function, method or nn.Module, tagged or not; it is not changed and not called.
    dynamic: sizes and ints that vary. None: none. True: all sizes that the program admits.
        {"x": {0: (2, 64), 1: None}}: dimension 0 of x from 2 to 64, and dimension 1 of any size
        from 2 on; a torch.export.Dim in place of a range says which sizes are equal. {"n": ...}:
        the int n, or all sizes of x. For an argument that is a container, the same in its shape.

    Raises Unsupported, with the line, for what one graph cannot express: a graph break, a change of
    a live object other than a buffer. Raises UsageError for arguments that no graph takes, and for
    a declared size that has to be constant.
    """

    def of_call(*args: object, **kwargs: object) -> ExportedProgram:
        call = ExampleCall.of(original_of(fn), args, kwargs, dynamic)
        return exported_program(call, capture(call))

    return of_call
