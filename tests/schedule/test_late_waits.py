"""Collectives run beside other steps: where a plan starts them and waits, and what they return."""

from __future__ import annotations

import textwrap

import pytest
import torch

from ..processes import run_forked

CODE = """
    import sys
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    import jitmagic
    from jitmagic.api import handle_of
    from jitmagic.codegen.plan import Call, Launch

    store = dist.FileStore(sys.argv[1] + "/store", 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    group = dist.group.WORLD

    def steps_of(run, *args):
        "Return the plan as a word of s (starts), w (waits) and k (kernels)."
        expected = run(*(arg.clone() for arg in args))
        options = {"on_error": "raise", "keep": "compiled", "persist": False}
        compiled = jitmagic.jit(run, options=options)
        for _ in range(2):
            given = [arg.clone() for arg in args]
            torch.testing.assert_close(compiled(*given), expected)
        plans = [record.result("forward: render") for record in handle_of(compiled).journal]
        (plan, _), = [found for found in plans if found is not None]
        words = []
        for step in plan.steps:
            if isinstance(step, Call):
                words.append("w" if "wait" in str(step.op) else "s")
            elif isinstance(step, Launch):
                words.append("k")
        return "".join(words)

    x, w = torch.randn(8, 8), torch.randn(8, 8)

    def beside(x, w):
        y = funcol.all_reduce(x.sin(), "sum", group)
        z = torch.softmax(w, -1)
        return y.cos() + z.sum(0), z

    def needed_at_once(x, w):
        return funcol.all_reduce(x.sin(), "sum", group).softmax(-1).sum()

    def called_late(x, w):
        z = torch.softmax(w, -1)
        y = funcol.all_reduce(x.sin(), "sum", group)
        return y.cos() + z.sum(0), z

    def in_turn(x, w):
        y = funcol.all_reduce(x, "sum", group)
        z = funcol.all_gather_tensor(w, 0, group)
        return z + 1, y + 1

    def written_while_it_is_read(x, w):
        y = funcol.all_gather_tensor(x, 0, group)
        x.add_(1)
        return y * 2, x * 3

    def many(x, w):
        first, second = funcol.all_reduce_coalesced([x * 2, w * 2], "sum", group)
        return (first * 2).softmax(-1), second.sin()

    def unused(x, w):
        funcol.all_reduce(x.sin(), "sum", group)
        return x + 1

    assert steps_of(beside, x, w) == "kskwk", steps_of(beside, x, w)
    assert steps_of(needed_at_once, x, w)[:3] == "ksw"
    assert steps_of(called_late, x, w) in ("kskwk", "kkswk")
    assert steps_of(in_turn, x, w)[:2] == "ss", steps_of(in_turn, x, w)
    assert steps_of(written_while_it_is_read, x, w).startswith("sw")
    assert sorted(steps_of(many, x, w).replace("k", "")) == ["s", "w", "w"]
    steps_of(unused, x, w)
    dist.destroy_process_group()
    print("done")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package")
def test_collectives_run_beside_kernels(tmp_path: object) -> None:
    done = run_forked(textwrap.dedent(CODE), str(tmp_path))
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
    assert "FallbackWarning" not in done.stderr
