"""library: the functions of installed packages that the hook looks at all the same.

Everything else that is not the user's own runs as it is (skip.py). These are the inner loops of
optimizers: pure arithmetic on lists of tensors, called with all they need as arguments. A frame of
theirs is compiled whole or runs as eager; it is never cut in two. Of the others the hook must not
look at what they call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

__all__ = ["LibraryFunction", "is_of_torch_compile", "library_function"]


@dataclass(frozen=True, slots=True)
class LibraryFunction:
    """`varying`: float arguments that are data from the start, because schedulers change them.

    Other floats become data once they were seen to change. `plain`: why it runs as plain Python
    with all that it calls; empty: it is compiled.
    """

    varying: frozenset[str] = frozenset()
    plain: str = ""


_STEP = LibraryFunction(frozenset({"lr"}))
_OPTIMIZERS = (
    "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop",
    "sgd",
)  # fmt: skip
_FUNCTIONS: Mapping[tuple[str, str], LibraryFunction] = {
    (f"torch.optim.{name}", f"{kind}_{name}"): _STEP
    for name in _OPTIMIZERS
    for kind in ("_single_tensor", "_multi_tensor")
} | {
    ("torch.utils.checkpoint", "checkpoint"): LibraryFunction(
        plain="what it calls runs again in backward, as plain Python, and must save the same"
    )
}


_RIVAL = LibraryFunction(plain="torch.compile compiles what it calls")


def is_of_torch_compile(module: str) -> bool:
    """Whether wrappers of torch.compile and torch.compiler come from a module of that name. Others
    of its package put functions around torch's and into weak references, which compile nothing.
    """
    package, _, name = module.rpartition(".")
    return package == "torch._dynamo" and name in ("eval_frame", "external_utils")


def library_function(code: CodeType, namespace: dict[str, Any]) -> LibraryFunction | None:
    """What is declared about a function of a library; None: it runs as it is."""
    if is_of_torch_compile(str(namespace.get("__name__"))):
        return _RIVAL
    return _FUNCTIONS.get((str(namespace.get("__name__")), code.co_qualname))
