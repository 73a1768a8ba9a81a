"""What a program asks torch about the process is in the graph, and what it sets takes effect.

Getters: one graph, and no stale answer once the state has changed (the mutations `state: ...` of
of_the_process.py change each of them between calls). Setters: reads before and after, what is left
when the call ends, and the calls that follow are eager's.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitmagic

from ..counts import counts_of

GETTERS = """
torch.get_float32_matmul_precision()
torch.get_num_threads()
torch.get_num_interop_threads()
torch.is_warn_always_enabled()
torch.get_default_dtype()
torch.get_default_device()
torch.are_deterministic_algorithms_enabled()
torch.is_deterministic_algorithms_warn_only_enabled()
torch.get_deterministic_debug_mode()
torch.utils.deterministic.fill_uninitialized_memory
torch.is_grad_enabled()
torch.is_inference_mode_enabled()
torch.is_autocast_enabled("cpu")
torch.backends.cuda.flash_sdp_enabled()
torch.backends.cuda.math_sdp_enabled()
torch.backends.cuda.mem_efficient_sdp_enabled()
torch.backends.cuda.cudnn_sdp_enabled()
torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
torch.backends.cuda.is_built()
torch.backends.cuda.matmul.allow_tf32
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
torch.backends.cuda.matmul.allow_fp16_accumulation
torch.backends.cudnn.enabled
torch.backends.cudnn.benchmark
torch.backends.cudnn.is_available()
torch.backends.mkldnn.enabled
torch.backends.mkldnn.is_available()
torch.backends.mkl.is_available()
torch.backends.mps.is_available()
torch.backends.openmp.is_available()
torch.backends.opt_einsum.enabled
torch.backends.cpu.get_cpu_capability()
torch.backends.mha.get_fastpath_enabled()
torch.distributed.is_available()
""".split("\n")[1:-1]


def program(*lines: str) -> Any:
    """A function of these lines, and the last one's value beside a tensor."""
    *body, last = lines
    text = ["def run(x):", "    x = x * 2", *(f"    {line}" for line in body)]
    names: dict[str, Any] = {"torch": torch}
    exec("\n".join([*text, f"    return x + 1, {last}", ""]), names)
    return names["run"]


@pytest.mark.parametrize("getter", GETTERS)
def test_what_is_asked_is_part_of_the_graph(getter: str) -> None:
    run, x = program(getter), torch.linspace(-1, 1, 5)
    tagged = jitmagic.jit(run, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(tagged(x)[0], run(x)[0])
        assert tagged(x)[1] == run(x)[1]
    counts = counts_of(tagged)
    assert (counts.graphs, counts.breaks) == (1, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="devices are initialized between calls")
@pytest.mark.parametrize("what", ["is_available", "device_count", "is_initialized"])
def test_a_device_that_torch_is_built_without_never_comes(what: str) -> None:
    run = program(f"torch.cuda.{what}()")
    tagged = jitmagic.jit(run, backend="eager")
    assert tagged(torch.ones(2))[1] == run(torch.ones(2))[1]
    assert counts_of(tagged).breaks == 0


# What tells it, what sets it, what sets it back.
_on = "torch.backends"
SETTERS = [
    (f"{_on}.cudnn.benchmark", "{} = True", "{} = False"),
    (f"{_on}.mkldnn.enabled", "{} = False", "{} = True"),
    (f"{_on}.mkldnn.deterministic", "{} = True", "{} = False"),
    (f"{_on}.cuda.matmul.allow_fp16_accumulation", "{} = True", "{} = False"),
    ("torch.utils.deterministic.fill_uninitialized_memory", "{} = False", "{} = True"),
    (
        "torch.is_warn_always_enabled()",
        "torch.set_warn_always(True)",
        "torch.set_warn_always(False)",
    ),
    *(
        (f"{getter}()", f"{setter}({to})", f"{setter}({back})")
        for getter, setter, to, back in (
            ("torch.get_num_threads", "torch.set_num_threads", 3, torch.get_num_threads()),
            ("torch.is_warn_always_enabled", "torch.set_warn_always", True, False),
            ("torch.get_default_dtype", "torch.set_default_dtype", torch.float64, torch.float32),
            (
                "torch.get_float32_matmul_precision",
                "torch.set_float32_matmul_precision",
                "'high'",
                "'highest'",
            ),
            (
                "torch.are_deterministic_algorithms_enabled",
                "torch.use_deterministic_algorithms",
                True,
                False,
            ),
            (f"{_on}.cuda.flash_sdp_enabled", f"{_on}.cuda.enable_flash_sdp", False, True),
            (f"{_on}.mha.get_fastpath_enabled", f"{_on}.mha.set_fastpath_enabled", False, True),
        )
    ),
]


@pytest.mark.parametrize(("getter", "setter", "back"), SETTERS, ids=[s[0] for s in SETTERS])
def test_what_is_set_takes_effect(getter: str, setter: str, back: str) -> None:
    run = program(f"before = {getter}", setter.format(getter), f"(before, {getter})")
    ask = program(getter)
    tagged, asks = jitmagic.jit(run, backend="eager"), jitmagic.jit(ask, backend="eager")
    x = torch.linspace(-1, 1, 5, dtype=torch.float32)
    with torch.backends.__allow_nonbracketed_mutation():
        exec(back.format(getter))
        for _ in range(2):
            results = []
            for called, asked in ((run, ask), (tagged, asks)):
                try:
                    results.append((called(x)[1], asked(x)[1], called(x)[1]))
                finally:
                    exec(back.format(getter))
                results.append((*results.pop(), asked(x)[1]))
            assert results[0] == results[1]
    assert results[0][0][0] != results[0][0][1]


def test_a_block_of_library_flags_is_left_where_it_breaks_and_read_by_plain_python() -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.backends.cudnn.flags(enabled=False):
            y = x + 1
            jitmagic.graph_break()
            enabled = torch.backends.cudnn.enabled
        return y * 2, enabled, torch.backends.cudnn.enabled

    x = torch.randn(3)
    torch.testing.assert_close(jitmagic.jit(program)(x), program(x))
    assert torch.backends.cudnn.enabled
