"""explain says which collectives were joined."""

from __future__ import annotations

import textwrap

import pytest
import torch

from ..processes import run_forked

RUN = """
    import sys
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    import jitmagic

    store = dist.FileStore(sys.argv[1] + "/store", 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    group = dist.group.WORLD

    def several(x, y):
        first = funcol.all_gather_tensor(x * 2, 0, group)
        second = funcol.all_gather_tensor(y.t(), 1, group)
        scaled = first.abs()
        third = funcol.all_gather_tensor(x[1:, ::2], 0, group)
        return scaled, second, third, first

    x, y = torch.randn(4, 6), torch.randn(5, 3)
    options = {"collectives": "joined", "persist": False}
    tagged = jitmagic.jit(several, options=options)
    for made, wanted in zip(tagged(x, y), several(x, y), strict=True):
        assert torch.equal(made, wanted)
        assert made.untyped_storage().nbytes() == made.numel() * 4
    text = str(jitmagic.explain(tagged)(x, y))
    assert "3 calls of all_gather_into_tensor joined into one, of 192 bytes" in text, text
    assert "clone_" not in text, text  # kernels that unpack have the lines of a collective

    def differentiated(x, y):
        made = [funcol.all_gather_tensor_autograd(x * y * n, 0, group) for n in (1, 2)]
        return (made[0] * made[1]).sum()

    tagged = jitmagic.jit(differentiated, options={**options, "precision": "fast"})
    tagged(x.requires_grad_(), 2.0).backward()
    text = str(jitmagic.explain(tagged)(x, 2.0))
    assert "backward: 2 calls of reduce_scatter_tensor joined into one" in text, text
    assert "clone_" not in text, text
    dist.destroy_process_group()
    print("done")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package")
def test_explain_says_what_was_joined(tmp_path: object) -> None:
    done = run_forked(textwrap.dedent(RUN), str(tmp_path))
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
    assert "FallbackWarning" not in done.stderr
