"""Finds calls that eager's kernels refuse although meta functions accept them.

Input: a call on meta tensors and the device that they stand for. Output: nothing, or `EagerRaises`
with the kernel's own error. Meta functions accept what kernels refuse (subtraction of bools,
`int_tensor *= 0.5`, 1e30 as a factor of float16), and a functional graph would compute a result.

An elementwise operation is run on one element. Any other is run on small tensors of the call's own
shapes, and only for dtypes or numbers that kernels are known to refuse. Large tensors are cut down;
shapes that no longer fit are refused for that reason, so then only a missing kernel
(NotImplementedError) counts. Where running a kernel gives no answer, tables of dtypes do, by name.

Each combination is tried once in a process, at the sizes of this call: elementwise operations and
products on the call's device, others on the CPU, as is all where the device is absent. CPU errors
other than a missing kernel hold for other devices too. A call whose result is unused is always
tried: no kernel will run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from ...symbols.context import Specialize
from ...symbols.probe import Answers, Verdict
from ...symbols.symbolic_numbers import symbols_of
from ...torch_types import AnyFunction, Args
from ..attribution import Silence, call_from
from ..nested import frozen
from ..node_meta import tensors_in
from ..propagate import EagerRaises, target_name
from ..symbolic.sym_node import sizes_in, with_hints
from .kernel_probing import call_on_fresh, running_alone, small_stand_in
from .recurrent import takes_packed_sequence

__all__ = ["check_dtypes", "kernel_accepts", "kernel_refusal"]

# Elementwise, like the operators with torch's tag `pointwise`, which these lack.
_UNTAGGED = frozenset(
    "absolute arctan2 complex divide elu_backward fill fix floor_divide full_like greater "
    "greater_equal hardshrink_backward hardswish hardtanh_backward leaky_relu_backward less "
    "less_equal logsigmoid multiply negative not_equal polar real softplus_backward "
    "softshrink_backward subtract".split()
)
# Their other overloads reduce, or some of their arguments do not fit stand-ins of one element.
_NOT_ALWAYS = frozenset("max min clone equal mvlgamma rrelu".split())
_FOREACH = (
    "add sub mul div addcmul addcdiv lerp clamp_min clamp_max maximum minimum pow exp sqrt log "
    "rsqrt reciprocal sign neg abs"
)
_FILLS = {"full": 0, "new_full": 1}  # position of the size, which kernels accept in any case
# Not probed: their kernels refuse the values of stand-ins (singular matrices, wrong lengths).
_UNASKED = (
    *("linalg_", "_linalg_", "cholesky", "inverse", "logdet", "slogdet", "svd", "lu", "triangular"),
    *(
        "ctc_loss",
        "_ctc_loss",
        "segment_reduce",
        "pinverse",
        "det",
        "geqrf",
        "ormqr",
        "orgqr",
        "qr",
        "_pack_padded_sequence",
        "_pad_packed_sequence",
        "repeat_interleave",
    ),
)
_MOST = 1 << 14  # elements that the stand-ins of a call may have
_MOST_UNCUT = 1 << 25  # the same if shapes must not be cut, which is rare
_CUT = 8  # the extents that larger tensors are cut to; usual windows and kernels still fit in
_UNCUT = 1 << 62
# Modules of Python functions that are probed like operators: they call operators unknown here.
_IN_PYTHON = ("torch.functional", "torch.nn.functional", "torch._jit_internal")
_OPERATORS = (
    "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift iadd isub imul itruediv "
    "ifloordiv imod ipow iand ior ixor ilshift irshift neg pos invert inv abs"
)
# cuBLAS and cuDNN have no integer products, the CPU has. No input value makes their GPU kernels
# fail a device assertion, so they can be probed on the GPU.
_PRODUCTS = frozenset(
    "matmul mm bmm mv dot vdot inner addmm addmv addbmm baddbmm linear bilinear einsum tensordot "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "chain_matmul linalg_matmul linalg_multi_dot linalg_vecdot".split()
)
_DUNDERS = "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()
_NAMES = frozenset(
    (
        *_OPERATORS.split(),
        *(f"_foreach_{name}{end}" for name in _FOREACH.split() for end in ("", "_")),
        *_FILLS,
        *(f"__{kind}{name}__" for name in _DUNDERS for kind in ("", "r", "i")),
    )
)
# Operands of these have one dtype, and are no bools.
_ONE_KIND = _PRODUCTS.union(
    "imatmul addr ger outer convolution scaled_dot_product_attention __matmul__ "
    "multi_head_attention_forward".split()
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
_NUMBERS = (bool, int, float, complex)
_PLAIN = (*_NUMBERS, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
_ANSWERS = Answers("eager's kernel accepts the arguments")
_UNKNOWN = Verdict.unknown("it cannot be run on stand-ins")


def check_dtypes(
    target: AnyFunction | str,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
) -> None:
    """Raise EagerRaises if the kernel refuses the dtypes or the numbers of the call, or may."""
    of_data = [
        symbol
        for size in sizes_in((args, kwargs))
        for symbol in symbols_of(size.expr)
        if size.context.of_data(symbol)
    ]
    args, kwargs = with_hints(args), with_hints(kwargs)
    tensors, elementwise = list(tensors_in((args, kwargs))), _is_elementwise(name)
    several = len({t.dtype for t in tensors if t.is_floating_point()}) > 1
    verdict = _UNKNOWN
    if several and not elementwise:
        _refuse_by_dtype(name, tensors)
    if elementwise or _is_suspect(target, name, args, kwargs):
        # Mixed dtypes are tried uncut: sizes that other arguments name cannot be cut.
        most = _MOST_UNCUT if several else _MOST
        large = not elementwise and sum(t.numel() for t in tensors) > most
        extent = _CUT if large else _UNCUT
        verdict = _Trial(target, name, args, kwargs, elementwise, extent).on(device)
    if verdict.outcome == "fails":
        if of_data:  # the error may be due to the example sizes
            raise Specialize(of_data, name)
        assert isinstance(verdict.reason, Exception)
        raise EagerRaises(verdict.reason)
    if tensors and verdict.outcome == "unknown":
        _refuse_by_dtype(name, tensors)


def _refuse_by_dtype(name: str, tensors: list[torch.Tensor]) -> None:
    refused = _dtype_refusal(name, tensors)
    if refused is not None:
        raise EagerRaises(RuntimeError(refused))


def kernel_refusal(
    target: AnyFunction | str,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
) -> Exception | None:
    """Return the error of a call that `check_dtypes` does not try, from its kernel; None if it
    accepts the call's shapes and dtypes, or cannot be tried.
    """
    in_torch = getattr(target, "__module__", None) in _IN_PYTHON
    if _is_elementwise(name) or not (in_torch or _number_places(name)[0]):
        return None
    args, kwargs = with_hints(args), with_hints(kwargs)
    if sum(t.numel() for t in tensors_in((args, kwargs))) > _MOST_UNCUT:
        return None
    trial = _Trial(target, name, args, kwargs, False, _UNCUT)
    found = trial.on_best_device(device)
    if found.outcome == "fails" and not isinstance(found.reason, NotImplementedError):
        found = trial.run("cpu", 1)  # with ones: it may refuse zeros
    return found.reason if isinstance(found.reason, Exception) else None


def kernel_accepts(
    target: AnyFunction | str, args: Args, kwargs: dict[str, object], grad: bool
) -> bool:
    """Return whether CPU kernels certainly accept the call and its backward, on small tensors."""
    large = sum(t.numel() for t in tensors_in((args, kwargs))) > _MOST
    extent = _CUT if large else _UNCUT
    trial = _Trial(target, target_name(target), args, kwargs, False, extent, grad)
    return trial.run("cpu").outcome == "holds"


class _Unaskable(Exception):
    """Raised for an argument that no stand-in can replace."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A call to run on stand-ins: of a single element or two, or of extents up to `extent`."""

    target: Callable[..., Any] | str
    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    is_elementwise: bool
    extent: int
    grad: bool | None = None  # None: only forward, without a grad mode

    def on(self, device: torch.device) -> Verdict:
        """Return whether the kernel of that device accepts the call, as far as that is certain.

        With cut shapes only a missing kernel is. Products of integers hardly exist on a GPU: there
        a graph break is the better guess.
        """
        found = self.on_best_device(device)
        no_kernel = isinstance(found.reason, NotImplementedError)
        product = device.type != "cpu" and self.name.removesuffix("_") in _PRODUCTS
        if self.extent == _CUT and not (no_kernel or product):
            return _UNKNOWN
        return found if found.outcome == "fails" or device.type == "cpu" else _UNKNOWN

    def on_best_device(self, device: torch.device) -> Verdict:
        """Return the answer of that device's kernel, if it can be run, else of the CPU's.

        A GPU is tried for other calls than elementwise ones and products only if the CPU has no
        kernel: a failed device assertion would cost its context. While a CUDA graph is captured,
        nothing else may run on it.
        """
        here = device.type == "cuda" and torch.cuda.is_available()
        here = here and not torch.cuda.is_current_stream_capturing()
        if here and (self.is_elementwise or self.name.removesuffix("_") in _PRODUCTS):
            return self.run("cuda")
        found = self.run("cpu")
        if device.type == "cpu" or not isinstance(found.reason, NotImplementedError):
            return found
        return self.run("cuda") if here else Verdict.holds()

    def run(self, device: str, integer: int = 0) -> Verdict:
        """Run the kernel of that device; integers may be indices, of which only 0 is valid."""
        modes = device, integer, self.grad, torch.get_default_dtype()
        try:
            given = frozen((self._given, self.kwargs), partial(self._described, seen={}))
        except _Unaskable:
            return _UNKNOWN
        ask = partial(self._asked, device, integer)
        if _is_of_torch(self.target):
            return _ANSWERS.of(self.name, (self.target, self.name, modes, given), ask)
        return ask()

    @property
    def _given(self) -> Sequence[object]:
        """Return the arguments; the size of a factory's result is cut down, which always fits."""
        at = _FILLS.get(self.name, len(self.args))
        if at >= len(self.args):
            return self.args
        size = self.args[at]
        cut = _few(size) if isinstance(size, tuple | list) else ()
        return *self.args[:at], cut, *self.args[at + 1 :]

    def _shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        shape = tensor.shape
        return _few(shape) if self.is_elementwise else tuple(min(n, self.extent) for n in shape)

    def _described(self, value: object, seen: dict[int, int]) -> Hashable:
        if isinstance(value, torch.Tensor):
            if id(value) in seen:
                return seen[id(value)]
            seen[id(value)] = len(seen)
            needs_grad = self.grad is not None and value.requires_grad
            return value.dtype, self._shape(value), needs_grad, self.is_elementwise
        if not isinstance(value, _PLAIN):
            raise _Unaskable
        return None

    def _asked(self, device: str, integer: int) -> Verdict:
        def fresh(tensor: torch.Tensor) -> torch.Tensor:
            shape, dtype = self._shape(tensor), tensor.dtype
            if self.is_elementwise:
                return torch.ones(shape, dtype=dtype, device=device)
            return small_stand_in(shape, dtype, device, integer)

        def call(args: Args, kwargs: dict[str, object]) -> Any:
            if isinstance(self.target, str):
                return call_from(Silence(), getattr(args[0], self.target), args[1:], kwargs)
            return call_from(Silence(), self.target, args, kwargs)

        try:
            is_differentiated = self.grad is not None
            with running_alone(device, bool(self.grad)):
                call_on_fresh(call, self._given, self.kwargs, fresh, is_differentiated)()
        except Exception as error:  # any error of the kernel is what the program would see
            return Verdict.fails(error.with_traceback(None))
        return Verdict.holds()


def _is_of_torch(target: AnyFunction | str) -> bool:
    """Return whether the process has one such function, which may be cached."""
    module = getattr(target, "__module__", None) or type(target).__module__
    return isinstance(target, str) or module.partition(".")[0] in ("torch", "_operator", "builtins")


def _few(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a stand-in's shape for elementwise operations: kernels treat 0-dim and single elements
    separately.
    """
    return (2 if math.prod(shape) != 1 else 1,) if shape else ()


def _is_suspect(
    target: AnyFunction | str, name: str, args: Args, kwargs: dict[str, object]
) -> bool:
    """Return whether to probe: integer, bool or complex tensors, several dtypes, or a number that a
    dtype cannot hold; and stand-ins can answer.
    """
    plain = name.removesuffix("_")
    known = _number_places(plain)[0] or getattr(target, "__module__", None) in _IN_PYTHON
    if not known or (plain.startswith(_UNASKED) and plain not in _PRODUCTS):
        return False
    tensors = list(tensors_in((args, kwargs)))
    if not tensors:
        return _fills_beyond(plain, args, kwargs)
    if takes_packed_sequence(target, args):
        return False
    if not all(t.is_floating_point() for t in tensors) or len({t.dtype for t in tensors}) > 1:
        return True
    numbers = _numbers(plain, args, kwargs)
    return any(not _holds(t.dtype, number) for number in numbers for t in tensors)


def _fills_beyond(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a factory takes a number that its dtype cannot hold.

    Infinite ranges are refused by the shape rule, so the stand-in is at most as large as the
    result.
    """
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    numbers = list(_numbers(name, args, kwargs))
    return not dtype.is_complex and any(not _holds(dtype, number) for number in numbers)


@lru_cache(maxsize=4096)
def _is_elementwise(name: str) -> bool:
    plain = name.removesuffix("_")
    if name in _NAMES or plain in _UNTAGGED or plain in _NOT_ALWAYS:
        return plain not in _NOT_ALWAYS
    packet = getattr(torch.ops.aten, plain, None)
    overloads = [] if packet is None else [getattr(packet, each) for each in packet.overloads()]
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


@lru_cache(maxsize=1024)
def _number_places(name: str) -> tuple[bool, frozenset[int], frozenset[str]]:
    """Return (is an ATen operation, positions, names) of its number arguments. Dimensions and flags
    do not count.
    """
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False, frozenset(), frozenset()
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    places = {
        (n, argument.name)
        for schema in schemas
        for n, argument in enumerate(schema.arguments)
        if "number" in str(argument.type)
    }
    return True, frozenset(n for n, _ in places), frozenset(name for _, name in places)


def _numbers(name: str, args: Args, kwargs: dict[str, object]) -> Iterator[object]:
    """Yield the number arguments, and each float: composites may pass it on as a Scalar."""
    _, positions, names = _number_places(name)
    given = [arg for n, arg in enumerate(args) if n in positions or type(arg) is float]
    given += [value for key, value in kwargs.items() if key in names or type(value) is float]
    for value in given:
        yield from (v for v in (value if isinstance(value, (list, tuple)) else (value,)))


def _holds(dtype: torch.dtype, number: Any) -> bool:
    """Return whether the number converts without overflow and is of no type treated specially."""
    if type(number) not in _NUMBERS:
        return True
    if type(number) in (bool, complex):
        return False
    if not dtype.is_floating_point:
        return dtype is torch.bool or _holds_integer(torch.iinfo(dtype), number)
    return not abs(number) > torch.finfo(dtype).max


def _holds_integer(limits: torch.iinfo, number: float) -> bool:
    return limits.min <= number <= limits.max


def _dtype_refusal(name: str, tensors: Sequence[torch.Tensor]) -> str | None:
    """Return why eager would raise for the dtypes of the call's tensors, by name; or None."""
    kinds = [t.dtype for t in tensors]
    first = kinds[0]
    if not _takes(name, first):
        return f"it is not implemented for {first}"
    if not _ONE_KIND.isdisjoint((name, name.removesuffix("_"))) and _differ(name, kinds):
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
