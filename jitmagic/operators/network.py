"""Activations, normalisations, losses and pooling."""

from __future__ import annotations

from functools import partial

from .operation import FLOATS, FRACTIONS, NO_BOOLS, Flag, define

__all__: list[str] = []

define(
    "softmax log_softmax softmin selu log_sigmoid glu normalize hardshrink prelu "
    "logcumsumexp std var std_mean var_mean igamma igammac mse_loss smooth_l1_loss kl_div "
    "hardtanh_",
    takes=FRACTIONS,
)
_define_activation = partial(define, promotion="first", arity=1)
_define_activation("gelu silu mish elu celu leaky_relu hardsigmoid softplus", takes=FRACTIONS)
_define_activation("hardswish", takes=FRACTIONS, is_elementwise=True)
_define_activation("hardtanh")
_define_activation("_prelu_kernel", is_elementwise=True)
_define_activation("softshrink", takes=FRACTIONS)
_define_activation("sgn")
_define_gradient = partial(define, promotion="equal", arity=2, is_elementwise=True)
_define_gradient(
    "gelu_backward silu_backward mish_backward hardtanh_backward hardswish_backward "
    "hardsigmoid_backward softplus_backward sigmoid_backward tanh_backward"
)
define("logsigmoid", takes=FRACTIONS, is_elementwise=True)
define("relu relu6 threshold _threshold trace neg", takes=NO_BOOLS)
define("layer_norm group_norm rms_norm", takes=FRACTIONS, operands="floats")
define(
    "batch_norm",
    takes=FRACTIONS,
    operands="floats",
    statistics=Flag("training", 5, default=False),
)
define(
    "instance_norm",
    takes=FRACTIONS,
    operands="floats",
    statistics=Flag("use_input_stats", 5, default=True),
)
define(
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool1d lp_pool1d lp_pool2d "
    "local_response_norm interpolate unfold fold",
    takes=FLOATS,
)
define("max_unpool1d max_unpool2d max_unpool3d", raises="data")
define("cross_entropy nll_loss", raises="data", has_labels=True)
define(
    "nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward cross_entropy_loss "
    "multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward gaussian_nll_loss",
    raises="data",
)
define("ctc_loss _ctc_loss", raises="data", can_be_probed=False)
define("_ctc_loss_backward _pack_padded_sequence* _pad_packed_sequence*", can_be_probed=False)
define("binary_cross_entropy", raises="data", takes=FRACTIONS, operands="one dtype")
define("huber_loss", takes=FRACTIONS, operands="one dtype")
define("soft_margin_loss grid_sample block_diag", operands="one dtype")
