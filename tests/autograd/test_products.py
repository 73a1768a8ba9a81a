"""Gradients of products with zeros or an overflow are those of eager, inf and nan too."""

from __future__ import annotations

import math

import pytest
import torch

import jitmagic
from tests.covering import covered

FORMS = {
    "all": lambda x: x.prod(),
    "wider": lambda x: x.prod(dtype=torch.float64),
    "rows": lambda x: torch.prod(x, -1),
    "columns kept": lambda x: x.prod(0, keepdim=True),
    "scaled": lambda x: (x * 2).prod(1).sin(),
}
BIG = 1e20
FACTORS = {
    "plain": [[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]],
    "one zero": [[1.0, 0.0, 3.0], [0.5, 4.0, -1.0]],
    "two zeros in a row": [[1.0, 0.0, 0.0], [0.5, 4.0, -1.0]],
    "all zeros": [[0.0] * 3] * 2,
    "overflow": [[BIG] * 3] * 2,
    "overflow beside a zero": [[BIG] * 3, [0.0, 1.0, 2.0]],
    "underflow": [[1e-30, 1e-30, 1e10], [1.0, 2.0, 3.0]],
    "inf": [[math.inf, 1.0, 2.0], [1.0, 2.0, 3.0]],
    "inf and zero": [[math.inf, 0.0, 2.0], [1.0, 2.0, 3.0]],
    "nan": [[math.nan, 1.0, 2.0], [1.0, 2.0, 3.0]],
    "one column": [[2.0], [0.0]],
    "empty": [[], []],
}


@covered(form=FORMS, factors=FACTORS, dtype=[torch.float32, torch.float16, torch.bfloat16])
def test_the_gradient_of_a_product_is_eagers(form, factors, dtype):
    function, values = FORMS[form], torch.tensor(FACTORS[factors]).to(dtype)
    found = []
    for run in (jitmagic.jit(function), function):
        x = values.clone().requires_grad_()
        found.append(torch.autograd.grad(run(x).sum(), x)[0])
    torch.testing.assert_close(*found, equal_nan=True)


@covered(form=[form for form in FORMS if form != "wider"], factors=FACTORS)
def test_the_gradient_of_a_product_of_complex_numbers_is_eagers(form, factors):
    function, parts = FORMS[form], torch.tensor(FACTORS[factors])
    found = []
    for run in (jitmagic.jit(function, fullgraph=True), function):
        x = torch.complex(parts, parts.flip(-1)).requires_grad_()
        found.append(torch.autograd.grad(run(x).abs().sum(), x)[0])
    torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_one_graph_serves_products_with_zeros_and_without(dynamic):
    compiled = jitmagic.jit(FORMS["rows"], dynamic=dynamic)
    for values in ([[1.0, 2.0]], [[0.0, 2.0]], [[BIG, BIG]], [[0.0, 0.0]]):
        found = []
        for run in (compiled, FORMS["rows"]):
            x = torch.tensor(values * 3, requires_grad=True)
            found.append(torch.autograd.grad(run(x).sum(), x)[0])
        torch.testing.assert_close(*found, equal_nan=True)
