"""What the tracer knows of torch by name: which calls may be a graph node, and why the others may
not.

Tables only. A torch function that appears in no table and whose kind `is_leaf_function` accepts
becomes one node of the graph: its meta run tells shapes, and what has no meta result breaks. A call
in a table of refusals ends the graph with that sentence and runs as plain Python.
"""

from __future__ import annotations

import types

import torch

__all__ = [
    "DATA_METHODS",
    "RAISING_ON_DATA",
    "REFUSED_FUNCTIONS",
    "REFUSED_METHODS",
    "REFUSED_MODULES",
    "is_inlined",
    "is_leaf_function",
    "module_refusal",
]

# Methods that turn data into Python values.
DATA_METHODS = frozenset(
    (
        "item tolist numpy __array__ __bool__ __int__ __float__ __complex__ __index__ "
        "__contains__ nonzero masked_select unique unique_consecutive argwhere is_nonzero equal "
        "allclose bincount"
    ).split()
)

_GRAPH = "it works on the autograd graph of live tensors"
_STORAGE = "it shows or changes the storage of a live tensor"
_HOOKS = "hooks run Python code during backward"
_LAYOUT = "it leaves the strided layout"
_NAMES = "named tensors are not followed"
_TEXT = "it shows tensor data"
_CALLS = "it calls back into Python for every element"
_OBJECT = "it makes another kind of object of the tensor"
_SHARED = "its results share memory and are no views of each other"
_UNSAFE = ("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes")

REFUSED_METHODS: dict[str, str] = {
    **dict.fromkeys(
        ("backward", "retain_grad", "detach_", "retains_grad", "_backward_hooks"), _GRAPH
    ),
    **dict.fromkeys(
        ("register_hook", "register_post_accumulate_grad_hook", "register_multi_grad_hook"), _HOOKS
    ),
    **dict.fromkeys(
        (
            "set_ resize_ resize_as_ resize resize_as_sparse_ data_ptr storage untyped_storage "
            "_typed_storage share_memory_ pin_memory storage_offset record_stream is_shared "
            "is_pinned is_set_to _version _base _is_view module_load is_inference _cdata new "
            "__cuda_array_interface__ storage_type is_same_size __dlpack__ __dlpack_device__ "
            "set_data _is_zerotensor"
        ).split(),
        _STORAGE,
    ),
    **dict.fromkeys(
        (
            "to_sparse to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc to_mkldnn to_dense "
            "coalesce is_coalesced indices values sparse_dim dense_dim sparse_mask sparse_resize_ "
            "sparse_resize_and_clear_ crow_indices col_indices ccol_indices row_indices "
            "dequantize q_scale q_zero_point int_repr qscheme smm sspaddmm to_padded_tensor"
        ).split(),
        _LAYOUT,
    ),
    **dict.fromkeys(
        ("names", "rename", "rename_", "align_to", "align_as", "refine_names", "has_names"), _NAMES
    ),
    **dict.fromkeys(_UNSAFE, _SHARED),
    **dict.fromkeys(("__repr__", "__str__", "__format__"), _TEXT),
    **dict.fromkeys(("apply_", "map_", "map2_"), _CALLS),
    **dict.fromkeys(
        ("as_subclass", "__deepcopy__", "__reduce_ex__", "__reduce__", "__copy__", "__hash__"),
        _OBJECT,
    ),
}

# Bare names of what raises for data that programs meet, so that some try another way then.
RAISING_ON_DATA = frozenset(
    (
        "inverse linalg_inv linalg_cholesky linalg_solve linalg_lu_factor linalg_ldl_factor "
        "linalg_tensorinv linalg_tensorsolve linalg_matrix_power"
    ).split()
)

_STATE = "it changes the state of the process"
_READS = "it reads the state of the process"
_OUTER = "it transforms a function"
_DATA = "its result depends on tensor data"
_FOREIGN = "it takes memory from outside torch"
_CONTROL = "it runs Python code given as an argument"
_GRAD_MODE = "what it saves for backward depends on the grad mode it runs in"

# Bare names of functions in torch.*, torch._C and below that must not become graph nodes.
REFUSED_FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "manual_seed seed initial_seed get_rng_state set_rng_state fork_rng set_default_dtype "
            "set_default_device set_default_tensor_type set_num_threads set_num_interop_threads "
            "set_flush_denormal set_printoptions use_deterministic_algorithms set_warn_always "
            "set_deterministic_debug_mode set_float32_matmul_precision save load _set_grad_enabled "
            "init_num_threads set_autocast_enabled set_autocast_dtype clear_autocast_cache "
            "autocast_increment_nesting autocast_decrement_nesting set_autocast_cache_enabled "
            "set_anomaly_enabled set_vital _assert_async"
        ).split(),
        _STATE,
    ),
    **dict.fromkeys(
        (
            "get_num_threads get_num_interop_threads are_deterministic_algorithms_enabled "
            "is_deterministic_algorithms_warn_only_enabled get_deterministic_debug_mode "
            "get_float32_matmul_precision is_anomaly_enabled read_vitals is_inference "
        ).split(),
        _READS,
    ),
    **dict.fromkeys(
        "compile cond while_loop vmap grad grad_and_value jacrev jacfwd functional_call".split(),
        _OUTER,
    ),
    **dict.fromkeys(
        (
            "lstsq linalg_lstsq is_nonzero equal allclose nonzero unique masked_select argwhere "
            "unique_consecutive bincount"
        ).split(),
        _DATA,
    ),
    **dict.fromkeys(
        "from_numpy frombuffer from_file from_dlpack to_dlpack asarray".split(), _FOREIGN
    ),
    **dict.fromkeys(
        ("triplet_margin_with_distance_loss", "multi_head_attention_forward_with_hooks"), _CONTROL
    ),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _GRAD_MODE),
    **dict.fromkeys(_UNSAFE, _SHARED),
    **dict.fromkeys(("is_distributed", "typename", "is_storage"), _READS),
    **dict.fromkeys(
        "quantize_per_tensor quantize_per_channel sparse_coo_tensor sparse_csr_tensor "
        "sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor sparse_compressed_tensor "
        "dequantize hspmm _sparse_coo_tensor_unsafe".split(),
        _LAYOUT,
    ),
}

REFUSED_MODULES: dict[str, str] = {
    "torch.autograd": _GRAPH,
    "torch.func": _OUTER,
    "torch._functorch": _OUTER,
    "torch.utils.checkpoint": "activation checkpointing runs the function again in backward",
    "torch.jit": "TorchScript is compiled by itself",
    "torch.distributed": "collectives synchronise processes",
    "torch.random": _STATE,
    "torch.cuda": _STATE,
    "torch.serialization": _STATE,
    "torch.nn.utils": "it changes modules or gradients in place",
    "torch.optim": "optimizers change parameters and their own state",
    "torch.utils.data": "data loading runs as plain Python",
    "torch.profiler": "profiling runs as plain Python",
}

_LEAF_C_MODULES = frozenset(
    {"torch", "torch._C._nn", "torch._C._fft", "torch._C._linalg", "torch._C._special"}
)
_LEAF_PYTHON_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch._tensor"})
# Python code of torch that is inlined like the user's own.
_INLINED_FUNCTIONS = frozenset(
    {"torch._assert", "torch.distributed.is_available"}
    | {
        f"torch.optim.optimizer.{name}"
        for name in ("_get_value", "_to_scalar", "_stack_if_compiling")
    }
)
_INLINED = (
    "torch.nn.modules",
    "torch.utils._contextlib",
    "torch.distributions",
    "torch.nn.init",
    "torch.nn.parameter",
    *(
        f"torch.nn.utils.{name}"
        for name in (
            "convert_parameters parametrizations parametrize rnn spectral_norm weight_norm".split()
        )
    ),
    "torch.nn.attention",
    "torch.autograd.grad_mode",
    "torch.amp.autocast_mode",
)


def is_leaf_function(obj: types.FunctionType | types.BuiltinFunctionType) -> bool:
    """Whether the function is of a kind that becomes one graph node."""
    module = obj.__module__
    if isinstance(obj, types.FunctionType):
        return module in _LEAF_PYTHON_MODULES
    return module in _LEAF_C_MODULES and obj.__self__ is not torch._C


def is_inlined(function: types.FunctionType) -> bool:
    """Whether a Python function of torch is inlined as the user's own are."""
    module = function.__module__
    return module.startswith(_INLINED) or f"{module}.{function.__qualname__}" in _INLINED_FUNCTIONS


def module_refusal(module: str) -> str:
    """Why functions of a torch module are not followed."""
    while module:
        if module in REFUSED_MODULES:
            return REFUSED_MODULES[module]
        module = module.rpartition(".")[0]
    return "it is no tensor operation that jitmagic knows"
