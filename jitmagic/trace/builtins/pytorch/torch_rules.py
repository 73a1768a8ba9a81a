"""Tables of torch functions by name: which calls become graph nodes, and why others may not.

A torch function that `is_leaf_function` accepts and no table refuses becomes one node; its shapes
come from running it on meta tensors, and if that fails the call is a graph break. A function in a
table of refusals is a graph break with the sentence given there.
"""

from __future__ import annotations

import types

from ....compat.functions import C_MODULE
from ....compat.torch_compile import is_disallowed

__all__ = [
    "DATA_METHODS",
    "PLACED_FACTORIES",
    "REFUSED_FUNCTIONS",
    "REFUSED_METHODS",
    "REFUSED_MODULES",
    "is_inlined",
    "is_leaf_function",
    "refusal_of",
]

# Methods that return tensor data as Python values.
DATA_METHODS = frozenset(
    (
        "item tolist numpy __array__ __bool__ __int__ __float__ __complex__ __index__ __contains__"
    ).split()
)

_GRAPH = "it works on the autograd graph of live tensors"
_STORAGE = "it shows or changes the storage of a live tensor"
_HOOKS = "no exit of a graph can register such a hook"
_NAMES = "named tensors are not followed"
_TEXT = "it shows tensor data"
_CALLS = "it calls back into Python for every element"
_OBJECT = "it makes another kind of object of the tensor"

REFUSED_METHODS: dict[str, str] = {
    **dict.fromkeys(("retain_grad", "detach_", "retains_grad", "_backward_hooks"), _GRAPH),
    **dict.fromkeys(
        ("register_hook", "register_post_accumulate_grad_hook", "register_multi_grad_hook"), _HOOKS
    ),
    **dict.fromkeys(
        (
            "set_ resize_ resize_as_ resize resize_as_sparse_ data_ptr storage untyped_storage "
            "_typed_storage share_memory_ pin_memory storage_offset record_stream is_shared "
            "is_pinned is_set_to _version _base _is_view module_load is_inference _cdata "
            "__cuda_array_interface__ storage_type is_same_size __dlpack__ __dlpack_device__ "
            "set_data shallow_copy_data_ _is_zerotensor"
        ).split(),
        _STORAGE,
    ),
    **dict.fromkeys(
        ("names", "rename", "rename_", "align_to", "align_as", "refine_names", "has_names"), _NAMES
    ),
    **dict.fromkeys(("__repr__", "__str__", "__format__"), _TEXT),
    **dict.fromkeys(("apply_", "map_", "map2_"), _CALLS),
    **dict.fromkeys(
        ("as_subclass", "__deepcopy__", "__reduce_ex__", "__reduce__", "__copy__", "__hash__"),
        _OBJECT,
    ),
}

_STATE = "it changes the state of the process"
_READS = "it reads the state of the process"
_OUTER = "it transforms a function"
_FOREIGN = "it takes memory from outside torch"

# Bare names of functions in torch.*, torch._C and below that must not become graph nodes.
REFUSED_FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "seed initial_seed get_rng_state fork_rng use_deterministic_algorithms "
            "save load init_num_threads clear_autocast_cache autocast_increment_nesting "
            "autocast_decrement_nesting"
        ).split(),
        _STATE,
    ),
    **dict.fromkeys(
        (
            "is_anomaly_enabled is_anomaly_check_nan_enabled read_vitals is_inference "
            "is_distributed typename is_storage"
        ).split(),
        _READS,
    ),
    **dict.fromkeys(
        "compile vmap grad grad_and_value jacrev jacfwd functional_call".split(),
        _OUTER,
    ),
    **dict.fromkeys(
        "from_numpy frombuffer from_file from_dlpack to_dlpack asarray".split(), _FOREIGN
    ),
}

REFUSED_MODULES: dict[str, str] = {
    "torch.autograd": _GRAPH,
    "torch._C._autograd": _GRAPH,
    "torch.func": _OUTER,
    "torch._functorch": _OUTER,
    "torch.utils.checkpoint": "activation checkpointing runs the function again in backward",
    "torch.jit": "TorchScript is compiled by itself",
    "torch.distributed": "collectives synchronise processes",
    "torch.random": _STATE,
    "torch.cuda": _STATE,
    "torch.serialization": _STATE,
    "torch.nn.utils": "it changes modules or gradients in place",
    "torch.utils.data": "data loading runs as plain Python",
    "torch.profiler": "profiling runs as plain Python",
}

_LEAF_C_MODULES = frozenset(
    {
        *("torch", "torch._C._nn", "torch._C._fft", "torch._C._linalg", "torch._C._special"),
        "torch._C._nested",
    }
)
_LEAF_PYTHON_MODULES = frozenset(
    {"torch.nn.functional", "torch.functional", "torch._tensor", "torch.nested"}
)
PLACED_FACTORIES = ("distribute_tensor", "zeros", "ones", "empty", "full")
"""Functions that make a DTensor. Not rand and randn, which move the state of the generator."""
# Functions that are nodes although their module is refused.
_LEAF_FUNCTIONS = (
    "torch.distributed._functional_collectives.",
    "torch.distributed.tensor._api.DTensor.",
    *(f"torch.distributed.tensor.{name}" for name in PLACED_FACTORIES),
)
_SETTERS = ("set_", "_set_", "enable_")
# Python code that is inlined although its name or its module is refused.
_INLINED_FUNCTIONS = frozenset(
    (
        "torch.distributed.distributed_c10d._WorldMeta.WORLD",
        "torch.distributed.distributed_c10d._World.default_pg",
        "torch.distributed.tensor._api.distribute_module.<locals>.<lambda>",
        "torch.distributed.tensor.experimental.local_map",
        *(f"torch.func.{name}" for name in ("functional_call", "stack_module_state")),
        "torch._functorch.functional_call.construct_stacked_leaf",
        *(
            f"torch.utils.data.dataloader.DataLoader.{name}"
            for name in ("__len__", "_auto_collation", "_index_sampler")
        ),
        *(
            f"torch.utils.checkpoint.checkpoint_sequential{inner}"
            for inner in ("", ".<locals>.run_function", ".<locals>.run_function.<locals>.forward")
        ),
    )
)
_INLINED = (
    "torch.nn.modules",
    "torch.distributions",
    "torch.distributed.tensor.experimental._func_map",
    "torch.distributed.tensor.parallel",
    *(
        f"torch.nn.utils.{name}"
        for name in (
            "clip_grad convert_parameters parametrizations parametrize prune rnn spectral_norm "
            "weight_norm".split()
        )
    ),
    "torch.backends",
    "torch.autograd.functional",
    "torch.autograd.grad_mode",
    "torch.autograd.graph",
    # Python above torch.utils.checkpoint and other public calls; its collectives are refused.
    "torch.distributed.algorithms",
    "torch.distributed.nn.functional",
    "torch.distributed.utils",
    "torch.utils.data.dataset",
    "torch.utils.data.sampler",
)


def is_leaf_function(obj: types.FunctionType | types.BuiltinFunctionType) -> bool:
    """Return whether the function is of a kind that becomes one graph node."""
    module = obj.__module__
    if isinstance(obj, types.FunctionType):
        return module in _LEAF_PYTHON_MODULES or _is_collective(obj)
    # Functions bound to torch._C, such as torch.set_num_threads, also have the module "torch". They
    # are about the process, not about tensors.
    return module in _LEAF_C_MODULES and obj.__self__ is not C_MODULE


def _is_collective(function: types.FunctionType) -> bool:
    return f"{function.__module__}.{function.__qualname__}".startswith(_LEAF_FUNCTIONS)


def is_inlined(function: types.FunctionType) -> bool:
    """Return whether a Python function of torch is inlined as the user's own are.

    It is, unless it is a node, or it or its module is refused.
    """
    module = function.__module__
    if module.startswith(_INLINED) or f"{module}.{function.__qualname__}" in _INLINED_FUNCTIONS:
        return True
    return not is_leaf_function(function) and _refused(function) is None


def refusal_of(function: types.FunctionType | types.BuiltinFunctionType) -> str | None:
    """Return why a function of torch is not traced; None if it is a graph node."""
    refused = _refused(function)
    if refused is None and not is_leaf_function(function):
        return "it is not a tensor operation that jitmagic knows"
    return refused


def _refused(function: types.FunctionType | types.BuiltinFunctionType) -> str | None:
    name, module = function.__name__, function.__module__
    if name.startswith(_SETTERS):
        return _STATE
    if name in REFUSED_FUNCTIONS:
        return REFUSED_FUNCTIONS[name]
    if isinstance(function, types.FunctionType) and _is_collective(function):
        return None
    if is_disallowed(function):
        return "torch.compile breaks its graphs there too"
    while module:
        if module in REFUSED_MODULES:
            return REFUSED_MODULES[module]
        module = module.rpartition(".")[0]
    return None
