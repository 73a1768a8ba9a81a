"""Memory of results: what is dropped is used again, what is held stays, little is kept."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import jitmagic
from jitmagic.codegen.plan import Alloc, Plan, Pool
from jitmagic.extension import runtime_module
from jitmagic.runtime.native import make_executable

CPU = torch.device("cpu")
F32 = torch.float32
MIB = 1 << 20
BOUND = 64 * MIB


def maker(mib: float):
    """An executable that returns one uninitialised tensor of so many MiB."""
    count = int(mib * MIB) // 4
    return make_executable(Plan("made", 0, (), (Alloc(0, (count,), (1,), F32, CPU),), (0,)), {})


@pytest.fixture(autouse=True)
def _nothing_kept():
    gc.collect()
    runtime_module().release_memory()
    yield
    runtime_module().release_memory()


@pytest.mark.parametrize("mib", [1.5, 2, 5.01, 16, 48])
def test_freed_large_result_is_reused_by_the_next(mib):
    make = maker(mib)
    (first,) = make()
    first.fill_(1.0)
    place = first.data_ptr()
    assert place % 4096 == 0
    del first
    assert mib * MIB <= runtime_module().kept_bytes() < (mib + 1) * MIB
    (again,) = make()
    assert again.data_ptr() == place
    assert runtime_module().kept_bytes() == 0


def test_live_results_do_not_share_memory():
    make = maker(4)
    held = [make()[0].fill_(float(n)) for n in range(8)]
    for _ in range(5):
        make()[0].fill_(-1.0)
    assert all(bool((tensor == n).all()) for n, tensor in enumerate(held))
    assert len({tensor.data_ptr() for tensor in held}) == 8


def test_a_view_keeps_the_memory():
    make = maker(4)
    view = make()[0].fill_(3.0)[1000:1010]
    assert make()[0].fill_(0.0).data_ptr() != view.data_ptr() - 4000
    assert view.tolist() == [3.0] * 10


def test_cached_bytes_are_bounded():
    held = [maker(mib)()[0] for mib in (3, 7, 13, 17, 23, 31, 47)]
    while held:
        held.pop()
        assert runtime_module().kept_bytes() <= BOUND
    assert runtime_module().kept_bytes() > BOUND // 2


def test_blocks_beyond_the_bound_are_unmapped_at_once():
    (big,) = maker(80)()
    del big
    assert runtime_module().kept_bytes() == 0


def test_much_larger_cached_blocks_are_not_reused():
    (big,) = maker(32)()
    place = big.data_ptr()
    del big
    assert maker(4)()[0].data_ptr() != place


def test_unused_blocks_are_unmapped_after_some_requests():
    (unused,) = maker(48)()
    del unused
    small = maker(2)
    for _ in range(70):
        small()
    assert runtime_module().kept_bytes() <= 2 * MIB


def test_reset_unmaps_all_cached_memory():
    runtime_module()
    results = [maker(mib)()[0] for mib in (0.01, 0.5, 2, 16)]
    del results
    assert runtime_module().kept_bytes() >= 18 * MIB
    jitmagic.reset()
    assert runtime_module().kept_bytes() == 0


def test_results_outlive_reset_and_are_freed_on_other_threads():
    box = [maker(16)()[0].fill_(2.0)]
    jitmagic.reset()
    assert bool((box[0] == 2.0).all())
    worker = threading.Thread(target=box.clear)
    worker.start()
    worker.join()
    assert runtime_module().kept_bytes() == 16 * MIB


def test_many_threads_take_and_drop():
    wrong: list[int] = []

    def work(number: int) -> None:
        make = maker(1.5 + number % 2)
        for _ in range(50):
            (mine,) = make()
            mine[:: 4096 // 4] = number
            if not bool((mine[:: 4096 // 4] == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_temporaries_in_the_pool_come_from_there_too():
    steps = (Pool(0, 0, (1024,), (1,), F32, CPU), Alloc(1, (4,), (1,), F32, CPU))
    make = make_executable(Plan("pooled", 0, (), steps, (1,), pool_bytes=8 * MIB), {})
    make()
    assert runtime_module().kept_bytes() >= 8 * MIB


def test_a_result_can_grow_and_be_shared():
    (tensor,) = maker(2)()
    tensor.fill_(1.0)
    tensor.resize_(3 * MIB // 4 * 4)
    assert tensor[: 2 * MIB // 4].sum().item() == 2 * MIB // 4
    (shared,) = maker(2)()
    shared.fill_(5.0).share_memory_()
    assert bool((shared == 5.0).all())


def test_too_much_raises_as_eager_does():
    count = 1 << 46
    with pytest.raises(RuntimeError) as eager:
        torch.empty(count)
    make = make_executable(Plan("huge", 0, (), (Alloc(0, (count,), (1,), F32, CPU),), (0,)), {})
    with pytest.raises(RuntimeError) as ours:
        make()
    assert "you tried to allocate" in str(eager.value)
    assert "you tried to allocate" in str(ours.value)
