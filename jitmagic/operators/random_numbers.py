"""Operations that draw random numbers."""

from __future__ import annotations

from .operation import FRACTIONS, Draws, Flag, define

__all__: list[str] = []

_ALWAYS = Draws()
_IN_TRAINING = Draws(Flag("training", 2, default=True))
_IF_TRAINING = Draws(Flag("training", 2, default=False))

define(
    "rand_like randn_like randint_like poisson binomial "
    "gumbel_softmax fractional_max_pool2d fractional_max_pool3d "
    "fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices random_ "
    "exponential_ geometric_ log_normal_ cauchy_ _sample_dirichlet _standard_gamma pca_lowrank "
    "lobpcg trunc_normal_ xavier_uniform_ xavier_normal_ kaiming_uniform_ kaiming_normal_ "
    "orthogonal_ sparse_",
    draws=_ALWAYS,
)
define("rand randn randint randperm normal", draws=_ALWAYS, makes_tensor=True)
define("normal_ uniform_ native_dropout", draws=_ALWAYS, takes=FRACTIONS)
define("bernoulli_", draws=_ALWAYS, raises="data")
define("bernoulli multinomial", draws=_ALWAYS, takes=FRACTIONS, raises="data")
define("svd_lowrank", draws=_ALWAYS, can_be_probed=False, kernel_strides=True)
define("dropout", draws=_IN_TRAINING, takes=FRACTIONS, floats_are_data=True)
define("dropout1d dropout2d dropout3d", draws=_IN_TRAINING, takes=FRACTIONS)
define("alpha_dropout feature_alpha_dropout", draws=_IF_TRAINING, takes=FRACTIONS)
define("feature_dropout", draws=_ALWAYS, takes=FRACTIONS)
define("rrelu", draws=_ALWAYS, takes=FRACTIONS, is_elementwise=False)
define("alpha_dropout_ feature_alpha_dropout_ rrelu_with_noise", draws=_ALWAYS)
define("lstm gru rnn_tanh rnn_relu", draws=_ALWAYS, kernel_strides=True)
define("lstm* gru* rnn_*", kernel_strides=True)
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
