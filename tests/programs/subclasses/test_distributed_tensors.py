"""DTensor and collectives on one process: operations, gradients and results are one graph."""

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


ASYNC = """
    import sys
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol
    from torch.utils._pytree import tree_leaves

    import jitmagic
    from tests.programs.counts import breaks_of, counts_of, eager_of

    backend, folder = sys.argv[1:]
    store = dist.FileStore(folder + "/store", 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    group = dist.group.WORLD

    def returned(x):
        made = funcol.all_reduce(x * 2, "sum", group)
        return made, made + 1

    def waited(x):
        made = funcol.all_reduce(x * 2, "sum", group)
        return made.wait() * 2

    def asked(x):
        made = funcol.all_reduce(x * 2, "sum", group)
        is_async = isinstance(made, funcol.AsyncCollectiveTensor)
        return (made.wait() if is_async else made * 3) + 1

    def observed(run, needs_grad):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_(needs_grad)
        made = tree_leaves(run(x))
        if needs_grad:
            sum(one.sum() for one in made).backward()
        facts = [(type(one), one.requires_grad, (one + 0).tolist()) for one in made]
        return facts, None if x.grad is None else x.grad.tolist()

    for program in (returned, waited, asked):
        for needs_grad in (False, True):
            compiled = jitmagic.jit(program, backend=backend, options={"on_error": "raise"})
            for _ in range(2):
                assert observed(compiled, needs_grad) == observed(program, needs_grad), program
            assert (breaks_of(compiled), eager_of(compiled)) == ([], [])
            assert counts_of(compiled).graphs == 1
    dist.destroy_process_group()
    print("done")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package")
@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
def test_results_of_collectives_have_the_class_of_eager(backend: str, tmp_path: object) -> None:
    done = run_forked(textwrap.dedent(ASYNC), backend, str(tmp_path))
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
