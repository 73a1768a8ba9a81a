"""Operators that were a graph break for what they are, not for their data: now one graph each."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's database of samples imports it")

from .trials import OPERATORS, name_of, trials  # noqa: E402
from .whole import hangs_on_data, why_no_graph  # noqa: E402

_WHOLE = (
    *("as_strided", "as_strided.partial_views", "as_strided_scatter", "stft"),  # storage offsets
    *("unsafe_split", "unsafe_chunk"),  # memory that is shared without a view
    *("cov", "corrcoef"),  # numbers read to check them
    *("index_put", "index_fill"),  # gradients of a size that data decide
    # edges of what eager takes
    *("masked.logsumexp", "nn.functional.batch_norm", "linalg.eig", "aminmax"),
    "nn.functional.pixel_unshuffle",
)
_WHOLE_AS = (
    ("native_dropout_backward", torch.int64),  # the factor makes them floats
    ("linalg.qr", torch.complex64),  # its gradient writes through real parts
    ("masked.prod", torch.complex64),
)
_SIZED_BY_DATA = ("nonzero", "masked_select", "tensor_split", "nn.functional.one_hot", "narrow")


def _all_trials(name: str, dtype: torch.dtype = torch.float32) -> list:
    named = [op for op in OPERATORS if name_of(op) == name]
    return [trial for op in named for trial in trials(op, "call", dtype, 1000)] or [
        trial for op in named for trial in trials(op, "call", torch.int64, 1000)
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _WHOLE)
def test_every_sample_is_one_graph(name: str) -> None:
    told = {why_no_graph(trial, "aten") for trial in _all_trials(name)}
    assert told <= {None, "refused by eager"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "dtype"), _WHOLE_AS)
def test_every_sample_of_a_dtype_is_one_graph(name: str, dtype: torch.dtype) -> None:
    told = {why_no_graph(trial, "aten") for trial in _all_trials(name, dtype)}
    assert told <= {None, "refused by eager"}


@pytest.mark.parametrize("name", _SIZED_BY_DATA)
def test_what_data_decide_the_size_of_is_counted_apart(name: str) -> None:
    assert any(hangs_on_data(trial) for trial in _all_trials(name))


@pytest.mark.parametrize("name", ["cov", "index_put", "take", "linalg.svd"])
def test_what_data_do_not_decide_the_size_of_is_not(name: str) -> None:
    assert not any(hangs_on_data(trial) for trial in _all_trials(name))
