"""Recurrent layers: one graph where a kernel has their backward, weights as the module has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import jitmagic
from tests.covering import covered

from ..counts import counts_of
from ..harness import Program, check


def r(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).requires_grad_(grad)


class Model(nn.Module):
    """A layer between what can be compiled."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layer = kind(4, 5, **options)

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, Any]:
        given = (states if len(states) > 1 else states[0]) if states else None
        made, last = self.layer(torch.tanh(x * 1.5), given)
        return torch.relu(made) * 2 + 1, last


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "both directions": {"bidirectional": True, "num_layers": 2},
    "dropout": {"dropout": 0.4, "num_layers": 3, "batch_first": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_an_lstm_in_training_is_one_graph(options: dict[str, Any]) -> None:
    calls = ((r(3, 6, 4, grad=True),), (r(3, 6, 4),))
    check(Program("lstm", lambda: Model(nn.LSTM, **options), lambda: calls, 1, 0, train=True))


def test_states_that_are_given_have_gradients() -> None:
    calls = ((r(6, 3, 4, grad=True), r(1, 3, 5, grad=True), r(1, 3, 5)),)
    check(Program("states", lambda: Model(nn.LSTM), lambda: calls, 1, 0, train=True))


def test_a_sequence_without_a_batch() -> None:
    calls = ((r(6, 4, grad=True),),)
    check(Program("unbatched", lambda: Model(nn.LSTM), lambda: calls, 1, 0, train=True))


KINDS = [
    (nn.LSTM, {"num_layers": 2}),
    (nn.LSTM, {"proj_size": 3}),
    (nn.GRU, {"bidirectional": True, "batch_first": True}),
    (nn.RNN, {"nonlinearity": "relu"}),
    (nn.RNN, {}),
]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_any_layer_in_inference_is_one_graph(kind: type[nn.RNNBase], options: Any) -> None:
    model = Model(kind, **options)
    compiled = jitmagic.jit(model.forward, fullgraph=True)
    for x in (r(3, 6, 4), r(1, 200, 4)):
        with torch.no_grad():
            (got, left), (wanted, right) = compiled(x), model(x)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(left, right)
        assert got.stride() == wanted.stride()


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("kind", "options"), KINDS[1:])
def test_training_without_a_kernel_has_a_formula_for_each_step(kind: Any, options: Any) -> None:
    calls = ((r(3, 6, 4, grad=True),), (r(3, 6, 4),))
    check(Program("cells", lambda: Model(kind, **options), lambda: calls, 1, 0, train=True))


@pytest.mark.parametrize("options", [{}, {"batch_first": True, "num_layers": 2}])
def test_many_steps_without_a_kernel_run_as_eager_does(options: dict[str, Any]) -> None:
    x = r(2, 60, 4, grad=True) if options else r(100, 2, 4, grad=True)
    check(Program("steps", lambda: Model(nn.GRU, **options), lambda: ((x,),), 1, 0, train=True))


LAYOUTS = [
    {},
    {"batch_first": True, "num_layers": 2, "dropout": 0.5},
    {"bidirectional": True, "num_layers": 2},
]


@covered(kind=[nn.GRU, nn.RNN, nn.LSTM], options=LAYOUTS, backend=["native", "aot_eager"])
def test_one_graph_whatever_the_steps_and_the_batch(kind: Any, options: Any, backend: str) -> None:
    """In inference a layer is one operation; in training it runs as eager does where no kernel has
    its backward: each length would be a compile of its own."""
    model = Model(kind, **options)
    for training in (True, False):
        compiled = jitmagic.jit(model.forward, dynamic=True, fullgraph=True, backend=backend)
        for steps, batch in ((6, 3), (9, 5), (7, 2)):
            found = []
            for forward in (compiled, model.forward):
                model.zero_grad()
                x = r(steps, batch, 4, grad=training)
                torch.manual_seed(1)
                with torch.set_grad_enabled(training):
                    made, last = forward(x)
                if training:
                    made.square().sum().backward()
                gradients = [t.grad for t in (x, *model.parameters())] if training else []
                found.append((made.detach(), made.stride(), last, gradients, torch.rand(1)))
            torch.testing.assert_close(*found)
        assert counts_of(compiled).graphs == 1


def test_a_backward_in_the_graph_is_a_break_before_the_layer() -> None:
    """What runs as eager does has a history that only autograd follows."""
    model = Model(nn.GRU)

    def step(x: Tensor) -> list[Tensor]:
        model.zero_grad()
        model(x)[0].square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]

    compiled = jitmagic.jit(step, dynamic=True, backend="aot_eager")
    for steps in (6, 9, 7):
        torch.testing.assert_close(compiled(r(steps, 3, 4)), step(r(steps, 3, 4)))
    assert counts_of(compiled).breaks


def test_weights_that_are_put_in_place_of_others_are_used() -> None:
    model = Model(nn.LSTM)
    compiled = jitmagic.jit(model.forward)
    x = r(6, 3, 4)

    def agree() -> None:
        torch.testing.assert_close(compiled(x)[0], model(x)[0])

    agree()
    model.layer.weight_hh_l0 = nn.Parameter(model.layer.weight_hh_l0.detach() * 2)
    agree()
    with torch.no_grad():
        model.layer.bias_hh_l0.add_(1)
    agree()
    model.double().float()
    agree()


ODD: list[Callable[[], Tensor]] = [
    lambda: r(6, 3, 3),
    lambda: r(6, 3, 4).double(),
    lambda: r(4),
    lambda: r(0, 3, 4),
]


@pytest.mark.parametrize("make", ODD)
def test_what_eager_refuses_is_refused_in_its_words(make: Callable[[], Tensor]) -> None:
    layer = nn.LSTM(4, 5)
    compiled = jitmagic.jit(lambda x: layer(x)[0])
    with pytest.raises(Exception) as wanted:  # noqa: PT011 - whatever eager raises
        layer(make())
    with pytest.raises(wanted.type) as got:
        compiled(make())
    assert str(got.value) == str(wanted.value)


class Packed(nn.Module):
    """A layer over sequences of several lengths, between what can be compiled."""

    def __init__(self, kind: type[nn.RNNBase], *, ordered: bool, **options: Any) -> None:
        super().__init__()
        self.layer = kind(4, 5, **options)
        self.ordered, self.first = ordered, self.layer.batch_first

    def forward(self, x: Tensor, lengths: Any, states: Any = None) -> tuple[Any, ...]:
        shape = {"batch_first": self.first, "enforce_sorted": self.ordered}
        x = nn.functional.dropout(x, 0.5, training=self.training and self.layer.dropout > 0)
        made, last = self.layer(pack_padded_sequence(torch.tanh(x) * 2, lengths, **shape), states)
        padded, counts = pad_packed_sequence(made, self.first, padding_value=-1.5)
        padded = nn.functional.dropout(padded, self.layer.dropout, training=self.training)
        return torch.relu(padded) * 2 + 1, last, counts


PACKED = [
    (nn.LSTM, {"ordered": False, "batch_first": True, "bidirectional": True}),
    (nn.LSTM, {"ordered": True, "num_layers": 2}),
    (nn.GRU, {"ordered": False, "num_layers": 2, "bidirectional": True}),
    (nn.RNN, {"ordered": False, "batch_first": True}),
    (nn.LSTM, {"ordered": False, "num_layers": 3, "dropout": 0.4}),
    (nn.GRU, {"ordered": True, "num_layers": 2, "dropout": 0.3, "bidirectional": True}),
]
LENGTHS = [[6, 4, 2], [5, 5, 1], [7, 3, 3], [6, 6], [6, 1, 1, 1]]


@covered(layer=range(len(PACKED)), train=[False, True], backend=["native", "aot_eager"])
def test_packed_sequences_are_whole(layer: int, train: bool, backend: str) -> None:
    kind, options = PACKED[layer]
    first = options.get("batch_first", False)

    def calls() -> tuple[Any, ...]:
        padded = [r(len(n), max(n), 4) for n in LENGTHS]
        padded = [x if first else x.transpose(0, 1).contiguous() for x in padded]
        lengths = [torch.tensor(n if options["ordered"] else n[::-1]) for n in LENGTHS]
        pairs = zip(padded, lengths, strict=True)
        return tuple((x.requires_grad_(train), n) for x, n in pairs)

    made, whole = (lambda: Packed(kind, **options)), {"fullgraph": True, "backend": backend}
    check(Program("packed", made, calls, None, None, train=train, options=whole))


def test_packed_sequences_take_lists_and_states() -> None:
    model = Packed(nn.GRU, ordered=True)
    compiled = jitmagic.jit(model, fullgraph=True)
    for lengths in LENGTHS[:2]:
        x, state = r(max(lengths), 3, 4), r(1, 3, 5)
        torch.testing.assert_close(compiled(x, lengths, state), model(x, lengths, state))


@pytest.mark.parametrize("lengths", [[2, 4, 6], [6, 4, 0], [6, 4], [9, 4, 2]])
def test_lengths_that_eager_refuses_are_refused(lengths: list[int]) -> None:
    model = Packed(nn.GRU, ordered=True)
    compiled = jitmagic.jit(model)
    x, wrong = r(6, 3, 4), torch.tensor(lengths)
    torch.testing.assert_close(compiled(x, torch.tensor([6, 4, 2]))[0].shape, (6, 3, 5))
    with pytest.raises(RuntimeError) as wanted:
        model(x, wrong)
    with pytest.raises(RuntimeError) as got:
        compiled(x, wrong)
    assert str(got.value) == str(wanted.value)


def test_the_switch_of_onednn_is_a_fact() -> None:
    model = Model(nn.LSTM)
    compiled = jitmagic.jit(model.forward)
    x = r(6, 3, 4)
    for enabled in (True, False, True):
        with torch.backends.mkldnn.flags(enabled=enabled):
            torch.testing.assert_close(compiled(x)[0], model(x)[0])
