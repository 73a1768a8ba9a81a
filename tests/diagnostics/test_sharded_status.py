"""What `status` says of modules whose frames run below a library's hooks."""

from __future__ import annotations

from tests.processes import run_forked

_TAGGED_BLOCK = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    import jitmagic

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x).tanh()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    block = jitmagic.jit(Block())
    print(jitmagic.status())
    fully_shard(block)
    for _ in range(3):
        block(torch.randn(3, 4)).sum().backward()
    print(jitmagic.status())
    dist.destroy_process_group()
"""


def test_a_tagged_block_that_fsdp2_calls_is_shown_as_compiled() -> None:
    done = run_forked(_TAGGED_BLOCK)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.strip().splitlines()
    assert before == "Block.forward: not called yet"
    assert after.startswith("Block.forward: compiled: ")
    assert "1 variant, 3 calls" in after
