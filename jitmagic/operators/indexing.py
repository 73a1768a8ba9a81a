"""Operations that read or write by indexes and masks, count, sort and search."""

from __future__ import annotations

import torch

from .operation import FRACTIONS, NO_BOOLS, ORDERED, define

__all__: list[str] = []

_LONG, _WHOLE, _MASK = (torch.int64,), (torch.int64, torch.int32), (torch.bool,)

define(
    "gather take take_along_dim index _unsafe_index embedding embedding_bag _embedding_bag "
    "_embedding_bag_forward_only _unsafe_index_put "
    "one_hot histogram histogramdd _histogramdd_bin_edges _histogramdd_from_bin_cts "
    "_histogramdd_from_bin_tensors bincount quantile nanquantile searchsorted _assert_async",
    raises="data",
)
define("scatter scatter_add scatter_reduce", raises="data", scatters=True)
define("index_put", raises="data", scatters=True, mixes="indexes")
define("getitem setitem __getitem__ __setitem__", mixes="indexes")
define("index_select", raises="data", index=_WHOLE)
define("index_reduce", raises="data", index=_WHOLE, scatters=True)
define("index_add", raises="data", index=_WHOLE, operands="one dtype", scatters=True)
define("index_fill", raises="data", index=_LONG)
define("put index_copy", raises="data", index=_LONG, operands="one dtype", scatters=True)
define("masked_scatter", raises="data", index=_MASK, scatters=True)
define("masked_fill", index=_MASK, mixes="scalars", is_elementwise=True)
define("repeat_interleave segment_reduce", raises="data", can_be_probed=False)
define("histc", raises="data", takes=FRACTIONS)
define("amax amin aminmax cummax cummin mode sort argsort msort nansum nanmean", takes=ORDERED)
define("max min", takes=ORDERED, is_elementwise=False)
define("argmax argmin median nanmedian topk kthvalue", takes=ORDERED & NO_BOOLS)
