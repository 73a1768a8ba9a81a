"""Imports every module that registers values, builtins or opcodes.

A new module of values/, builtins/ or opcodes/ gets its name here, and no other registration.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["MODULES"]

_NAMES = {
    "builtins.python": (
        "containers copying exit_stacks functions impure_calls iteration "
        "iterator_tools numbers objects operators ordering registered_calls set_methods texts"
    ),
    "builtins.pytorch": (
        "attention autocast autograd_functions checkpointing checks collectives composites "
        "control_flow differentiation flex_attention functional numpy_calls optimizers "
        "process_state random_numbers recurrent torch_calls triton_operators"
    ),
    "opcodes": (
        "attributes calls class_bodies comparisons containers control exceptions functions "
        "imports intrinsics locals patterns stack with_"
    ),
    "values.autograd": "forward_mode",
    "values.caches": "lru_cache",
    "values.containers": "deques dict_objects getters live_iterators namedtuples",
    "values.contexts": ("attention_kernels context_vars contexts inference threads torch_contexts"),
    "values.modules": "hook_handles new_modules nn_module",
    "values.numbers": "number residual_calls",
    "values.numpy": "numbers random_streams",
    "values.objects": (
        "class_statements enums exceptions fixed_objects functions instances namespaces partials "
        "torchscript weak_references"
    ),
    "values.tensors": "tensor_hooks tensor_inputs torch_function triton_kernels",
}

MODULES: tuple[ModuleType, ...] = tuple(
    importlib.import_module(f".{package}.{name}", __package__)
    for package, names in _NAMES.items()
    for name in names.split()
)
