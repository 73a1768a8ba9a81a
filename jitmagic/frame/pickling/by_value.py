"""Reduces dispatchers for pickles by value, which cloudpickle makes (joblib, Ray, Dask).

cloudpickle takes the functions of a notebook apart: a stub down to the dispatcher in its constants.
In: a dispatcher. Out: the user's function, its options and its compiler; the other process tags
the function again.
"""

from __future__ import annotations

import copyreg
import pickle
from typing import Any

from ...options import Options
from ..code_updates import handle_in, stub_code
from ..family import Compiler
from ..forwarder import forwarder, needs_forwarder
from ..handle import Handle, all_handles
from ..native import Dispatcher, ModuleCall

__all__: list[str] = []


def _reduce_dispatcher(dispatcher: Dispatcher) -> tuple[object, ...]:
    for root in all_handles():
        if dispatcher.owner in root.pieces:
            return _revive_piece, (root.dispatcher, root.pieces.index(dispatcher.owner))
    stub = None if dispatcher.stub is None else dispatcher.stub()
    handle = None if stub is None else handle_in(stub.__code__)
    if stub is None or handle is None or handle is not dispatcher.owner:
        raise pickle.PicklingError(f"{dispatcher!r} belongs to no tagged function")
    family = handle.family
    original: object = stub.__wrapped__  # type: ignore[attr-defined]
    return _revive_dispatcher, (original, family.options, family.compiler)


def _revive_dispatcher(target: Any, options: Options, compiler: Compiler) -> Dispatcher:
    function = forwarder(target) if needs_forwarder(target) else target
    return Handle.of_function(function, options, compiler).dispatcher


def _revive_piece(dispatcher: Dispatcher, number: int) -> Dispatcher:
    handle = dispatcher.owner
    if not handle.pieces:
        stub_code(handle)
    return handle.pieces[number].dispatcher  # type: ignore[no-any-return]


copyreg.pickle(Dispatcher, _reduce_dispatcher)  # type: ignore[arg-type]
# GraphModule pickles all its attributes, this one as None.
copyreg.pickle(ModuleCall, lambda call: (type(None), ()))  # type: ignore[arg-type, return-value]
