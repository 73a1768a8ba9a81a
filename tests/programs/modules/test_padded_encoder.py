"""nn.TransformerEncoder over padded batches in inference, of which eager makes nested tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from tests.covering import covered

from ..counts import counts_of

SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {},
    "norm_first": {"norm_first": True},
    "gelu": {"activation": "gelu"},
    "odd_heads": {"nhead": 3},
    "time_first": {"batch_first": False},
}


def encoder(normed: bool, **settings: Any) -> nn.TransformerEncoder:
    torch.manual_seed(1)
    given = {"nhead": 4, "dim_feedforward": 16, "batch_first": True, **settings}
    layer = nn.TransformerEncoderLayer(12, **given)
    made = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(12) if normed else None).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


def masks() -> dict[str, Tensor]:
    """True is padding."""
    aligned = torch.arange(5) >= torch.tensor([[3], [5], [2]])
    gaps, empty = aligned.clone(), aligned.clone()
    gaps[1, 1] = empty[1] = True
    added = torch.zeros(3, 5).masked_fill(aligned, float("-inf"))
    none = torch.zeros(3, 5, dtype=torch.bool)
    return {"aligned": aligned, "gaps": gaps, "empty": empty, "added": added, "none": none}


@pytest.mark.filterwarnings("ignore")
@covered(name=SETTINGS, normed=[False, True], backend=["eager", "native"])
def test_what_is_padded_is_zero_where_eager_has_it_so(
    name: str, normed: bool, backend: str
) -> None:
    made = encoder(normed, **SETTINGS[name])
    around, itself = copy.deepcopy(made), copy.deepcopy(made)
    inner = jitmagic.jit(lambda x, mask: around(x * 1, src_key_padding_mask=mask), backend=backend)
    root = jitmagic.jit(itself, backend=backend)
    x = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(2))
    x = x if SETTINGS[name].get("batch_first", True) else x.transpose(0, 1)
    with torch.no_grad():
        for mask in masks().values():
            expected = made(x, src_key_padding_mask=mask)
            for result in (inner(x, mask), root(x, src_key_padding_mask=mask)):
                torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5, equal_nan=True)
    if name != "odd_heads":
        assert counts_of(inner).breaks == counts_of(root).breaks == 0


@pytest.mark.filterwarnings("ignore")
def test_a_break_inside_leaves_the_check_of_the_mask_to_eager() -> None:
    made = encoder(True)
    made.layers[1].linear1.register_forward_hook(lambda *_: None)  # no layer for nested tensors
    tagged = jitmagic.jit(copy.deepcopy(made), backend="eager")
    x = torch.randn(3, 5, 12)
    with torch.no_grad():
        for mask in masks().values():
            expected = made(x, src_key_padding_mask=mask)
            result = tagged(x, src_key_padding_mask=mask)
            torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5, equal_nan=True)
