"""FSDP2's modules under the default options: which of their frames get handles, and when."""

from __future__ import annotations

import pytest

from tests.processes import run_forked

_SHARDED = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    import jitmagic
    from jitmagic.api import handle_of

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(self.first(x).tanh())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(6)])

        def forward(self, x):
            x = x * 2
            for block in self.blocks:
                x = block(x)
            return x.sin()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = Model()
    SHARD
    model = jitmagic.jit(model, options={"background": "auto", "keep": "faster"})
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
    handle = handle_of(model)
    found = [one for one in (handle, *handle.family.members) if one.dispatcher.calls]
    print(sorted((one.label, str(one.outcome)) for one in found))
    dist.destroy_process_group()
"""
_BLOCKS = "for block in model.blocks: fully_shard(block)"


@pytest.mark.parametrize("whole", ["", "; fully_shard(model)"])
def test_layers_of_sharded_blocks_do_not_count_for_the_model(whole: str) -> None:
    """All 12 layers in one graph would be left to eager at first; FSDP2's hooks get no handles."""
    done = run_forked(_SHARDED.replace("SHARD", _BLOCKS + whole.replace("; ", "\n    ")))
    assert done.returncode == 0, done.stderr
    compiled = [("Block.forward", "compiled"), *[("Model.forward", "compiled")] * 3]
    assert done.stdout.strip() == str(compiled)


def test_layers_of_one_sharded_module_count_together() -> None:
    done = run_forked(_SHARDED.replace("SHARD", "fully_shard(model)"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([("Model.forward", "None")])
