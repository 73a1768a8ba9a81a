"""DTensor on a mesh of one process: operations, gradients and local tensors are one graph."""

from __future__ import annotations

import textwrap

import pytest
import torch

from ...processes import run_forked

PROGRAMS = """
        lambda x, w: x * 2 + 1,
        lambda x, w: (x @ w.detach()).relu(),
        lambda x, w: (x @ w).sum(),
        lambda x, w: (x @ w).to_local() * 2,
        lambda x, w: x.full_tensor() + 1,
"""
CODE = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    import jitmagic
    from tests.programs.counts import breaks_of, counts_of, eager_of

    backend, folder = sys.argv[1:]
    store = dist.FileStore(folder + "/store", 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))

    def observed(run, number):
        torch.manual_seed(number)
        x = distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)])
        w = torch.nn.Parameter(distribute_tensor(torch.randn(4, 4), mesh, [Replicate()]))
        result = run(x, w)
        if result.requires_grad:
            result.sum().backward()
        return result, w.grad

    def check(program):
        compiled = jitmagic.jit(program, backend=backend, options={"on_error": "raise"})
        for number in range(3):
            both = observed(compiled, number), observed(program, number)
            for found, wanted in zip(*both, strict=True):
                assert type(found) is type(wanted), (found, wanted)
                if isinstance(found, DTensor):
                    assert found._spec == wanted._spec, (found._spec, wanted._spec)
                    found, wanted = found._local_tensor, wanted._local_tensor
                if found is not None:
                    torch.testing.assert_close(found, wanted)
        assert (breaks_of(compiled), eager_of(compiled)) == ([], [])
        assert counts_of(compiled).graphs == 1

    for program in [PROGRAMS]:
        check(program)
    dist.destroy_process_group()
    print("done")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package")
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_distributed_tensors_are_one_graph(backend: str, tmp_path: object) -> None:
    done = run_forked(textwrap.dedent(CODE).replace("PROGRAMS", PROGRAMS), backend, str(tmp_path))
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
