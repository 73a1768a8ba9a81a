"""Products, convolutions, attention, sorting: what libraries do better stays one ATen call.

Only reasons live here; lower() makes these ops extern calls. Their arguments may be strided views
(aliases), so transposes cost nothing.
"""

from __future__ import annotations

from ..registry import fallback

__all__: list[str] = []

fallback(
    "a matrix product is the library's",
    *("mm.default", "bmm.default", "addmm.default", "baddbmm.default", "addmv.default"),
    *("mv.default", "dot.default", "vdot.default", "addbmm.default", "addr.default"),
    *("linear.default", "matmul.default", "einsum.default"),
)
fallback(
    "a convolution is the library's",
    *("convolution.default", "convolution_backward.default", "_convolution.default"),
    "cudnn_convolution.default",
)
fallback(
    "a recurrent layer is the library's",
    *("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"),
    "mkldnn_rnn_layer_backward.default",
)
fallback(
    "attention has its own fused kernels",
    "_scaled_dot_product_flash_attention_for_cpu.default",
    "_scaled_dot_product_flash_attention_for_cpu_backward.default",
    "_scaled_dot_product_flash_attention.default",
    "_scaled_dot_product_flash_attention_backward.default",
    "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_efficient_attention_backward.default",
    "_scaled_dot_product_cudnn_attention.default",
    "_scaled_dot_product_attention_math.default",
    "scaled_dot_product_attention.default",
)
fallback(
    "pooling windows overlap",
    *("max_pool2d_with_indices.default", "max_pool2d_with_indices_backward.default"),
    *("avg_pool2d.default", "avg_pool2d_backward.default"),
    *("_adaptive_avg_pool2d.default", "_adaptive_avg_pool2d_backward.default"),
)
fallback(
    "sorting and scanning are sequential",
    *("sort.default", "sort.stable", "topk.default", "kthvalue.default", "median.dim"),
    *("cumsum.default", "cumprod.default", "cummax.default", "cummin.default"),
    *("logcumsumexp.default", "unique_dim.default", "_unique2.default"),
)
fallback(
    "writes at run-time indexes happen in eager's order",
    *("index_copy.default", "scatter_reduce.two", "scatter.reduce", "scatter.value_reduce"),
    *("index_fill.int_Scalar", "masked_scatter.default"),
)
fallback(
    "the result's size depends on the data",
    *("nonzero.default", "masked_select.default", "unique_consecutive.default"),
)
