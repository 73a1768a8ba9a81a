"""Operations that draw random numbers."""

from __future__ import annotations

from .operation import FRACTIONS, Draws, Flag, define

__all__: list[str] = []

_ALWAYS = Draws()
_IN_TRAINING = Draws(Flag("training", 2, default=True))
_IF_TRAINING = Draws(Flag("training", 2, default=False))

# Functions of torch in Python, whose operators draw.
define(
    "gumbel_softmax fractional_max_pool2d fractional_max_pool3d "
    "fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices pca_lowrank "
    "lobpcg trunc_normal_ xavier_uniform_ xavier_normal_ kaiming_uniform_ kaiming_normal_ "
    "orthogonal_ sparse_",
    draws=_ALWAYS,
)
define("svd_lowrank", draws=_ALWAYS, can_be_probed=False, kernel_strides=True)
define("normal_ uniform_ native_dropout feature_dropout", takes=FRACTIONS)
define("bernoulli_", raises="data")
define("bernoulli multinomial", takes=FRACTIONS, raises="data")
define("rrelu", takes=FRACTIONS, is_elementwise=False)
define("lstm* gru* rnn_*", kernel_strides=True)
define("dropout", draws=_IN_TRAINING, takes=FRACTIONS, floats_are_data=True)
define("dropout1d dropout2d dropout3d", draws=_IN_TRAINING, takes=FRACTIONS)
define("alpha_dropout feature_alpha_dropout", draws=_IF_TRAINING, takes=FRACTIONS)
define("alpha_dropout_ feature_alpha_dropout_", draws=_ALWAYS)
define(
    "scaled_dot_product_attention",
    draws=Draws(Flag("dropout_p", 4, default=False)),
    operands="one kind",
    floats_are_data=True,
    kernel_strides=True,
)
define(
    "multi_head_attention_forward",
    draws=Draws(Flag("training", 15, default=True)),
    operands="one kind",
    kernel_strides=True,
)
