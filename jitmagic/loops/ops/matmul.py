"""Lists the operations that stay ATen calls, with the reasons.

lower() makes these ops extern calls. Their arguments may be strided views (aliases), so that
transposes are not copied.
"""

from __future__ import annotations

from ..registry import fallback

__all__: list[str] = []

fallback(
    "matrix products use the library",
    *("mm.default", "bmm.default", "addmm.default", "baddbmm.default", "addmv.default"),
    *("mv.default", "dot.default", "vdot.default", "addbmm.default", "addr.default"),
    *("linear.default", "matmul.default", "einsum.default"),
)
fallback(
    "convolutions use the library",
    *("convolution.default", "convolution_backward.default", "_convolution.default"),
    "cudnn_convolution.default",
)
fallback(
    "recurrent layers use the library",
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
    *("_adaptive_avg_pool2d.default", "_adaptive_avg_pool2d_backward.default"),
)
fallback(
    "sorting is sequential",
    *("kthvalue.default", "median.dim", "unique_dim.default", "_unique2.default"),
)
fallback(
    "eager writes duplicate run-time indexes in order",
    *("index_copy.default", "scatter_reduce.two", "scatter.reduce", "scatter.value_reduce"),
    *("index_fill.int_Scalar", "masked_scatter.default"),
)
fallback(
    "the result's size depends on the data",
    *("nonzero.default", "masked_select.default", "unique_consecutive.default"),
)
