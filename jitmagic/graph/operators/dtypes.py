"""Tables, by name, of the dtypes that kernels of non-elementwise operations accept.

Input: the name and the meta arguments of a call that the meta run accepted. Output: the reason why
eager's kernel refuses the dtypes, or may. Elementwise operations are probed (probe.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["why_dtypes_are_refused"]

_PRODUCTS = frozenset(
    (
        "matmul imatmul mm bmm mv dot vdot linear addmm addmm_ addbmm baddbmm baddbmm_ addmv addr "
        "ger outer bilinear einsum tensordot chain_matmul conv1d conv2d conv3d conv_transpose1d "
        "conv_transpose2d conv_transpose3d convolution scaled_dot_product_attention __matmul__ "
        "inner linalg_multi_dot multi_head_attention_forward linalg_vecdot"
    ).split()
)
_FLOATING_ONLY = frozenset(
    (
        "softmax log_softmax softmin gelu silu mish elu celu selu leaky_relu hardswish hardsigmoid "
        "softplus logsigmoid glu layer_norm group_norm batch_norm instance_norm rms_norm hardtanh_ "
        "dropout alpha_dropout normalize mse_loss smooth_l1_loss huber_loss bernoulli "
        "binary_cross_entropy kl_div hardshrink softshrink prelu rrelu logcumsumexp std var "
        "std_mean var_mean multinomial histc log_sigmoid uniform_ normal_ igamma igammac "
        "native_dropout dropout_ dropout1d dropout2d dropout3d feature_dropout feature_dropout_ "
        "feature_alpha_dropout"
    ).split()
)
_BITWISE = frozenset(
    (
        "and_ or_ xor invert iand ior ixor lshift rshift ilshift irshift bitwise_and bitwise_or "
        "bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ "
        "__invert__ __rand__ __ror__ __rxor__ __iand__ __ior__ __ixor__ bitwise_and_ bitwise_or_ "
        "bitwise_xor_ bitwise_not_"
    ).split()
)
_ORDERED_ONLY = frozenset(
    "max min amax amin aminmax argmax argmin median nanmedian sort argsort msort topk kthvalue "
    "mode cummax cummin nansum nanmean histc softmax log_softmax softmin group_norm glu bernoulli "
    "multinomial".split()
)
# Kernels of these accept floats and some integer dtypes.
_FLOATING_MOSTLY = frozenset(
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d "
    "adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool3d interpolate unfold fold lp_pool1d "
    "lp_pool2d local_response_norm max_pool1d".split()
)
# Operations whose kernels need one dtype for all tensors; some of their meta functions promote.
_ONE_DTYPE = frozenset(
    "binary_cross_entropy cross linalg_cross grid_sample index_copy index_copy_ index_add put_"
    " index_add_ huber_loss soft_margin_loss block_diag".split()
)
# Weights must be floating-point, but may be float32 for an input in half precision.
_NORMS = frozenset("layer_norm group_norm batch_norm instance_norm rms_norm".split())
_LONG = frozenset({torch.int64})
_WHOLE = frozenset({torch.int64, torch.int32})
_MASK = frozenset({torch.bool})
_INDEX_DTYPES = {
    **dict.fromkeys("index_copy index_copy_ index_fill index_fill_ put put_".split(), _LONG),
    **dict.fromkeys("index_add index_add_ index_reduce index_select".split(), _WHOLE),
    **dict.fromkeys("masked_fill masked_fill_ masked_scatter masked_scatter_".split(), _MASK),
}
_NO_BOOL = frozenset(
    "relu relu_ relu6 sub isub neg __sub__ __rsub__ argmax argmin median nanmedian topk kthvalue "
    "trace threshold threshold_ _threshold".split()
)
_TARGETS = frozenset({torch.int64, torch.uint8})


def why_dtypes_are_refused(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor]
) -> str | None:
    """Return the reason why eager would raise, or None. `tensors`: all of the call's, in order."""
    kinds = [t.dtype for t in tensors]
    first = kinds[0]
    if not _takes(name, first):
        return f"it is not implemented for {first}"
    if name in _PRODUCTS and _differ(name, kinds):
        return "operands of different dtypes, or bools"
    if name in ("index_put", "index_put_") and kinds[-1] != first:
        return "the values have another dtype"
    if name in _ONE_DTYPE and len(_without_index(name, kinds)) > 1:
        return "operands of different dtypes"
    if name in _NORMS and not all(kind.is_floating_point for kind in kinds):
        return "scales that are not floating-point numbers"
    if name in _INDEX_DTYPES and len(kinds) > 1 and kinds[1] not in _INDEX_DTYPES[name]:
        return f"an index or a mask of {kinds[1]}"
    labelled = name in ("cross_entropy", "nll_loss") and len(kinds) > 1
    if labelled and not kinds[1].is_floating_point and kinds[1] not in _TARGETS:
        return f"a target of {kinds[1]}"
    return None


def _takes(name: str, first: torch.dtype) -> bool:
    numbers = first.is_floating_point or first.is_complex
    if name in _FLOATING_ONLY:
        return numbers
    if name in _FLOATING_MOSTLY:
        return first.is_floating_point
    if name in _BITWISE:
        return not numbers
    if name in _ORDERED_ONLY and first.is_complex:
        return False
    return not (name in _NO_BOOL and first is torch.bool)


def _differ(name: str, kinds: Sequence[torch.dtype]) -> bool:
    """Return whether operands of a product have several dtypes; attention accepts a bool mask."""
    if name == "scaled_dot_product_attention":
        kinds = [kind for kind in kinds if kind is not torch.bool]
    return len({*kinds}) > 1 or torch.bool in kinds


def _without_index(name: str, kinds: Sequence[torch.dtype]) -> set[torch.dtype]:
    return set(kinds[:1]) | set(kinds[2:] if name in _INDEX_DTYPES else kinds[1:])
