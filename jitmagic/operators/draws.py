"""The scalar operation that draws a random number as ATen's CUDA kernels do.

ATen gives each thread of a dropout kernel a stream of Philox4x32-10 (Salmon et al., "Parallel
Random Numbers: As Easy as 1, 2, 3"): the key is the generator's seed, the counter its offset / 4
and the thread. A thread takes runs of `vector` neighbouring elements, `threads` runs apart, and
draws four numbers at a time (aten/src/ATen/native/cuda/Dropout.cu).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .scalar import ScalarOperation, define

__all__: list[str] = []

_WORD = 2**32 - 1
_FACTORS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def philox(seed: Tensor, offset: Tensor, at: Tensor, vector: Tensor, threads: Tensor) -> Tensor:
    """Return the 32 bits that are drawn for the element at each position, as int64."""
    run, lane = at // vector, at % vector
    counter = offset // 4 + run // threads * (vector // 4) + lane // 4
    words = [counter & _WORD, counter >> 32, run % threads, torch.zeros_like(at)]
    low, high = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(10):
        (a, b), (c, d) = (_product(f, w) for f, w in zip(_FACTORS, words[::2], strict=True))
        words = [c ^ words[1] ^ low, d, a ^ words[3] ^ high, b]
        low, high = (low + _STEPS[0]) & _WORD, (high + _STEPS[1]) & _WORD
    drawn = torch.stack(torch.broadcast_tensors(*words))
    return drawn.gather(0, (lane % 4).expand(drawn.shape[1:])[None])[0]


def _product(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of a product; in int64, it would overflow."""
    low, high = factor * (word & 0xFFFF), factor * (word >> 16)
    low = low + ((high & 0xFFFF) << 16)
    return ((high >> 16) + (low >> 32)) & _WORD, low & _WORD


define(ScalarOperation("philox", 5, philox, "integers", cost=40, languages=("triton",)))
