"""What fuzz programs do with layers: templates of expressions, one per line, in families.

The placeholders of tensor_tables.py, and $q a tensor of three dimensions, $r one of four.
`weight(like, *shape)` is the program's own helper: numbers of the shape in the dtype of `like`.
"""

from __future__ import annotations

__all__ = ["EXPRESSIONS"]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


_REDUCTIONS = ("mean", "sum", "none")
_PAIRED_LOSSES = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits soft_margin_loss "
    "poisson_nll_loss kl_div"
).split()

EXPRESSIONS: dict[str, list[str]] = {
    "linear": _lines("""
        F.linear($f, weight($f, 5, $f.shape[-1]))
        F.linear($f, weight($f, 7, $f.shape[-1]), weight($f, 7))
        F.linear($f, weight($f, 1, $f.shape[-1]), weight($f, 1)).relu()
        F.linear($f, weight($f, $f.shape[-1], 9).t(), weight($f, 9)).tanh()
        F.linear(F.relu(F.linear($f, weight($f, 6, $f.shape[-1]))), weight($f, 3, 6))
        F.linear($f, weight($f, 8, $f.shape[-1])[::2], weight($f, 8)[::2])
        F.linear($f, weight($f, 4, 2 * $f.shape[-1])[:, ::2])
        F.linear($f, weight($f, 1, $f.shape[-1]).expand(4, -1))
        $f @ weight($f, $f.shape[-1], 3) + weight($f, 3)
        $f @ weight($f, 3, $f.shape[-1]).t() - weight($f, 1)
        weight($f, 2, $f.shape[0]) @ $f
        $m.t() @ weight($m, $m.shape[0], 5)
        $m.t() @ $m
        torch.addmm(weight($m, 5), $m, weight($m, $m.shape[1], 5))
        torch.addmm(weight($m, $m.shape[0], 1), $m, weight($m, $m.shape[1], 4))
        torch.addmm(weight($m, 5), $m, weight($m, $m.shape[1], 5), beta=0)
        torch.addmm(weight($m, 1), $m, weight($m, $m.shape[1], 5), alpha=0.5)
        torch.addmv($m[:, 0], $m, $m[0], beta=2, alpha=0.5)
        torch.addr($m, $m[:, 0], $m[0], alpha=2)
        torch.addbmm($m, $m[None], weight($m, 1, $m.shape[1], $m.shape[1]))
        $q @ $q.mT
        $q @ weight($q, $q.shape[-1], 4)
        $q @ weight($q, $q.shape[-1])
        torch.bmm($q, $q.transpose(1, 2)).softmax(-1)
        torch.bmm($q[:, :1].expand_as($q), $q.mT)
        torch.einsum("bij,bkj->bik", $q, $q)
        torch.einsum("bij,bij->b", $q, $q)
        torch.einsum("bij->bji", $q)
        torch.einsum("ij,j->i", $m, $m[0])
        torch.einsum("ij,ij->", $m, $m)
        torch.einsum("i,j->ij", $m[0], $m[:, 0])
        torch.einsum("ii->i", $m[:2, :2])
        torch.einsum("...ij,...jk->...ik", $f, $f.mT)
        F.bilinear($m, $m, weight($m, 3, $m.shape[1], $m.shape[1]))
        torch.chain_matmul($m, $m.t(), $m)
        torch.linalg.multi_dot([$m, $m.t(), $m])
        torch.linalg.matrix_power($m.float() @ $m.float().t(), 2)
        torch.linalg.vecdot($m, $m * 2)
        torch.matmul($m[0], $m.t())
        F.scaled_dot_product_attention($q, $q, $q)
        F.scaled_dot_product_attention($q[None], $q[None], $q[None], is_causal=True)
        F.scaled_dot_product_attention($q[None], $q[None], $q[None], $q @ $q.mT > 0)
        ($q @ $q.mT * 0.3).masked_fill($q @ $q.mT < 0, -9).softmax(-1) @ $q
    """),
    "convolution": _lines("""
        F.conv1d($m[None], weight($m, 2, $m.shape[0], 3))
        F.conv1d($m[None], weight($m, 2, $m.shape[0], 2), weight($m, 2), padding=1)
        F.conv1d($m[None], weight($m, $m.shape[0], 1, 3), groups=$m.shape[0], stride=2)
        F.conv1d($m[None], weight($m, 3, $m.shape[0], 2), dilation=2, padding=2)
        F.conv1d($m, weight($m, 1, $m.shape[0], 3), padding="same")
        F.conv1d($q, weight($q, 4, $q.shape[1], 3), weight($q, 4), padding=1).relu()
        F.conv_transpose1d($m[None], weight($m, $m.shape[0], 2, 3), stride=2, output_padding=1)
        F.conv2d($m[None, None], weight($m, 2, 1, 3, 3), padding=1)
        F.conv2d($m[None, None], weight($m, 1, 1, 2, 2), weight($m, 1), stride=(2, 1))
        F.conv2d($r, weight($r, 4, $r.shape[1], 3, 3), weight($r, 4), padding=1)
        F.conv2d($r, weight($r, 2, $r.shape[1], 1, 1)).relu() + 1
        F.conv2d($r, weight($r, $r.shape[1], 1, 3, 3), groups=$r.shape[1], padding=(1, 2))
        F.conv2d($r, weight($r, 2, $r.shape[1], 2, 2), dilation=2, padding=1)
        F.conv2d($r.contiguous(memory_format=torch.channels_last), weight($r, 2, $r.shape[1], 2, 2))
        F.conv_transpose2d($r, weight($r, $r.shape[1], 2, 2, 2), stride=2, padding=1)
        F.conv3d($q[None, None], weight($q, 2, 1, 1, 2, 2))
        F.unfold($r, 2, padding=1)
        F.fold(F.unfold($r, 2), $r.shape[2:], 2)
        F.pixel_shuffle($r.repeat(1, 4, 1, 1), 2)
        F.pixel_unshuffle($r[..., :2, :2], 2)
        F.channel_shuffle($r.repeat(1, 2, 1, 1), 2)
        $r.to(memory_format=torch.channels_last) * 2
        $r.contiguous(memory_format=torch.channels_last).relu().sum((2, 3))
    """),
    "pooling": _lines("""
        F.max_pool1d($q, 2, padding=1)
        F.max_pool2d($q, 2)
        F.max_pool2d($r, 2, stride=1, padding=1)
        F.max_pool2d($r, (2, 1), dilation=(2, 1))
        F.max_pool2d($r, 3, 2, ceil_mode=True)
        F.max_pool2d($r, 2, return_indices=True)[1]
        F.max_unpool2d(*F.max_pool2d($r, 2, return_indices=True), 2)
        F.avg_pool1d($q, 3, stride=1, padding=1, count_include_pad=False)
        F.avg_pool2d($q, 2, ceil_mode=True)
        F.avg_pool2d($r, 2, padding=1)
        F.avg_pool2d($r, 2, divisor_override=3)
        F.lp_pool1d($q, 2, 2)
        F.adaptive_avg_pool1d($q, 3)
        F.adaptive_avg_pool2d($r, (2, 1))
        F.adaptive_avg_pool2d($r, 1).flatten(1)
        F.adaptive_max_pool1d($q, 2)
        F.adaptive_max_pool2d($r, (1, 2))
        F.interpolate($q, scale_factor=2)
        F.interpolate($q, size=5, mode="linear")
        F.interpolate($q, size=7, mode="linear", align_corners=True)
        F.interpolate($r, scale_factor=(2, 1.5))
        F.interpolate($r, size=(3, 5), mode="nearest-exact")
        F.interpolate($r, size=(5, 4), mode="bilinear")
        F.interpolate($r, size=(5, 4), mode="bilinear", align_corners=True)
        F.interpolate($r, size=(2, 2), mode="bilinear", antialias=True)
        F.interpolate($r, scale_factor=2, mode="bicubic")
        F.interpolate($r, size=2, mode="area")
        F.grid_sample($r, torch.zeros($r.shape[0], 2, 2, 2, dtype=$r.dtype) + 0.2)
        F.affine_grid(weight($r, $r.shape[0], 2, 3), $r.shape)
    """),
    "padding": _lines("""
        F.pad($x, (2, 0), value=1.5)
        F.pad($m, (1, 1, 0, 2))
        F.pad($m, (-1, 2, 1, -1), value=$s)
        F.pad($m[None], (2, 1), mode="reflect")
        F.pad($m[None], (2, 1), mode="replicate")
        F.pad($m[None], (1, 2), mode="circular")
        F.pad($q, (1, 1, 1, 1), mode="reflect")
        F.pad($q, (0, 2, 1, 0), mode="replicate")
        F.pad($r, (1, 0, 0, 1), mode="reflect")
        F.pad($r, (1, 1, 1, 1), mode="circular")
        F.pad($r, (2, 1, 1, 1), mode="replicate")
        F.pad($r, (1, 0, 0, 1, 1, 0), value=$s)
        F.pad($b, (1, 1), value=True)
        F.pad($x, (0, 0))
    """),
    "normalization": _lines("""
        F.layer_norm($f, $f.shape)
        F.layer_norm($q, $q.shape[1:], weight($q, *$q.shape[1:]))
        F.layer_norm($f, $f.shape[-1:], None, weight($f, $f.shape[-1]), eps=0.1)
        F.layer_norm($f, $f.shape[-1:], weight($f, $f.shape[-1]), weight($f, $f.shape[-1])) * 2
        F.layer_norm($m.t(), $m.t().shape[-1:])
        F.batch_norm($m, weight($m, $m.shape[1]), weight($m, $m.shape[1]).abs())
        F.batch_norm($q, None, None, weight($q, $q.shape[1]), weight($q, $q.shape[1]), True)
        F.batch_norm($r, None, None, weight($r, $r.shape[1]), training=True).relu()
        F.batch_norm($r, weight($r, $r.shape[1]), weight($r, $r.shape[1]).abs(), momentum=0.3)
        F.group_norm($q, 1, weight($q, $q.shape[1]), weight($q, $q.shape[1]))
        F.group_norm($r, $r.shape[1])
        F.group_norm($r, 1, None, None, 0.1)
        F.instance_norm($q)
        F.instance_norm($r, weight=weight($r, $r.shape[1]), bias=weight($r, $r.shape[1]))
        F.local_response_norm($q, 2)
        F.rms_norm($f, $f.shape[-1:], weight($f, $f.shape[-1]), 1e-3)
        F.rms_norm($q, $q.shape[1:])
        F.normalize($f, p=1, dim=$d, eps=0.1)
        F.softmax($q, $d).log()
        F.softmin($f, $d)
        F.gumbel_softmax($f, dim=$d)
        F.gumbel_softmax($f, hard=True)
        F.log_softmax($f, $d, dtype=torch.float64)
        F.softmax($f.masked_fill($f > $s, float("-inf")), $d)
        F.dropout1d($q, 0.5, True)
        F.alpha_dropout($f, 0.3, True)
        F.feature_alpha_dropout($q, 0.5, True)
        F.prelu($q, weight($q, $q.shape[1]))
        F.prelu($f, weight($f, 1))
        F.rrelu($f, training=False)
        F.glu($f, $d).sigmoid()
        F.gelu($f) * F.silu($f)
    """),
    "loss": [
        f'F.{name}($f, $y, reduction="{way}")' for name in _PAIRED_LOSSES for way in _REDUCTIONS
    ]
    + _lines("""
        F.huber_loss($f, $y, delta=0.3)
        F.smooth_l1_loss($f, $f2 * 2, beta=0.0)
        F.kl_div($f, $f2.softmax(-1), log_target=True, reduction="batchmean")
        F.binary_cross_entropy($f.sigmoid() * 0.9, $f.cos().abs() * 0.9)
        F.binary_cross_entropy($f.sigmoid() * 0.9, $f.cos().abs() * 0.9, $f.abs(), reduction="none")
        F.binary_cross_entropy_with_logits($f, $f.sign().abs(), pos_weight=weight($f, 1).abs())
        F.cross_entropy($m, $m.argmax(1))
        F.cross_entropy($m, $m.argmin(1), reduction="none")
        F.cross_entropy($m, $m.argmax(1), weight($m, $m.shape[1]).abs())
        F.cross_entropy($m, torch.arange($m.shape[0]) % 2, ignore_index=1)
        F.cross_entropy($m, torch.full(($m.shape[0],), -100), reduction="sum")
        F.cross_entropy($m, torch.full(($m.shape[0],), -100))
        F.cross_entropy($m, $m.argmax(1), label_smoothing=0.2)
        F.cross_entropy($m, $m.softmax(1))
        F.cross_entropy($m, $m.softmax(1), label_smoothing=0.1, reduction="sum")
        F.cross_entropy($q, $q.argmax(1))
        F.cross_entropy($r, $r.argmax(1), reduction="sum", ignore_index=0)
        F.cross_entropy($m[0], torch.tensor(1))
        F.nll_loss($m, $m.argmax(1), weight($m, $m.shape[1]), reduction="sum")
        F.nll_loss($m, torch.arange($m.shape[0]) % 3 - 1, ignore_index=-1)
        F.nll_loss($q.log_softmax(1), $q.argmin(1), reduction="none")
        F.hinge_embedding_loss($f, $f.sign())
        F.cosine_embedding_loss($m, $m * 2 + 1, torch.ones($m.shape[0]))
        F.margin_ranking_loss($m[0], $m[-1], torch.ones($m.shape[1]), margin=0.2)
        F.triplet_margin_loss($m, $m + 1, $m * 2)
        F.multi_margin_loss($m, $m.argmin(1))
        F.multilabel_soft_margin_loss($m, ($m > 0).to($m.dtype))
        F.gaussian_nll_loss($f, $f * 2, $f.abs() + 0.5)
        F.ctc_loss($m[:, None].float().log_softmax(-1), $m.argmin(1)[None, :1], (len($m),), (1,))
        F.pairwise_distance($m, $m + 1)
        F.pdist($m.float())
    """),
    "lookup": _lines("""
        F.embedding($i.long().clamp(0, 3), weight(torch.ones(1), 4, 3), padding_idx=1)
        F.embedding($i.int().clamp(0, 3), $m[:1].expand(4, -1))
        F.embedding($m.argmax(1) % 2, $m)
        F.embedding($m.argmax(1) % 2, $m, padding_idx=0)
        F.embedding($m.argmax(1) % 2, $m.t().contiguous().t(), padding_idx=-1)
        F.embedding($m.argmax(1) % 2, $m, max_norm=1.0)
        F.embedding($m.argmax(1) % 2, $m, scale_grad_by_freq=True)
        F.embedding_bag($m.argmax(1)[None] % 2, $m, mode="sum")
        F.embedding_bag($m.argmax(1) % 2, $m, torch.tensor([0, 1]), mode="mean")
        F.one_hot($m.argmax(1), $m.shape[1])
        F.one_hot($i.long().abs() % 3)
        $m.gather(1, $m.argmax(1, keepdim=True))
        $m[torch.arange($m.shape[0]), $m.argmax(1)]
        $m[:, $m.argmin(0) % 2]
        $m[$m.argmax(1) % 2, None]
        $q[:, torch.tensor([0, 1]), torch.tensor([1, 0])]
        $q[torch.tensor([0, 1]), :, torch.tensor([1, 0])]
        $q[..., torch.tensor([[0, 1]]), 0]
        $q[torch.tensor([True, False]), 1:]
        $m[torch.tensor([-1]), ::2]
        $x.scatter_reduce($d, torch.zeros_like($x, dtype=torch.int64), $x, "sum")
        $x.scatter_reduce($d, torch.zeros_like($x, dtype=torch.int64), $x, "prod")
        $f.scatter_reduce($d, torch.zeros_like($f, dtype=torch.int64), $f * 2, "mean")
        $x.scatter_reduce($d, $x.argsort($d), $x, "amin", include_self=False)
        $m.scatter_reduce(0, $m.argmax(0, keepdim=True) % 2, $m[:1], "amax", include_self=False)
        $m.scatter(1, $m.argmax(1, keepdim=True), $s)
        $m.scatter(1, $m.argmax(1, keepdim=True), $m[:, :1], reduce="add")
        $m.scatter_add(0, $m.argmax(1, keepdim=True).expand_as($m) % 2, $m * 2)
        $m.index_add(1, torch.tensor([0, 0]), $m[:, :2], alpha=2)
        $m.index_add(0, $m.argmax(1) % 2, $m)
        $m.index_copy(1, torch.tensor([1, 0]), $m[:, :2])
        $m.index_reduce(0, torch.tensor([0, 0]), $m[:2], "prod")
        $m.index_fill(1, torch.tensor([0, -1]), $s)
        $m.index_put((torch.tensor([0, 0]), torch.tensor([1, 1])), $m[0, 0], accumulate=True)
        $x.put(torch.tensor([0, -1]), $x.flatten()[:2], accumulate=True)
        $x.masked_scatter($b, $x)
        torch.bincount($i.long().abs().flatten(), minlength=3)
        torch.bucketize($x, torch.tensor([-1, 0, 2]), right=True)
        torch.isin($x, torch.tensor([0, 1]))
        torch.take_along_dim($m, $m.argmax(0, keepdim=True), 0)
        $x.unfold($d, 2, 1).sum(-1)
        $x.unfold(0, 2, 1)[..., 0]
    """),
    "order": _lines("""
        $x.topk(2, $d, largest=False)[1]
        $x.topk(1, $d).values
        $x.round().topk(2, $d)[0]
        $x.sort($d, descending=True)[0]
        $x.sort(dim=$d, descending=True, stable=True)[1]
        $x.sign().sort(dim=$d, stable=True)[1]
        $x.sign().argmax($d)
        $x.sign().argmin($d, keepdim=True)
        $x.sign().max($d)[1]
        $x.sign().min($d, keepdim=True)[1]
        $x.sign().argmax()
        $x.sign().amax($d) + $x.max()
        $f.sign().amax() * $f.sum()
        $f.sign().amin($d)
        $x.msort()
        $x.mode($d)[0]
        $x.nanmedian($d)[0]
        $f.quantile(0.4, $d)
        $f.nanmean($d)
        $f.nansum($d, keepdim=True)
        $x.cummax($d)[1]
        $x.cummin($d)[0]
        $x.cumsum($d, dtype=torch.float64)
        $x.cumsum($d).flip($d).cumsum($d)
        $x.cumprod($d, dtype=$t)
        $x.logcumsumexp($d)
        torch.cumulative_trapezoid($f, dim=$d)
        torch.trapezoid($f, dim=$d)
        $x.diff(dim=$d)
        $x.diff(n=2, prepend=$x[:1]) if $x.dim() == 1 else $x
        torch.gradient($f)[0]
        torch.renorm($f, 2, 0, 1.0)
        torch.searchsorted($m.sort(1)[0].contiguous(), $m)
        torch.cov($m)
        torch.corrcoef($m)
        torch.vander($x.flatten()[:3])
        torch.unique_consecutive($x.flatten().sign())
        torch.count_nonzero($x, $d)
        torch.equal($x, $x)
        torch.allclose($f, $f)
    """),
    "dims": [
        f"$q.{name}({dims}{keep})"
        for name in "sum mean amax amin std var any all count_nonzero logsumexp nansum".split()
        for dims in ("(0, 2)", "(-1, 0)", "[1]", "()", "(0, 1, 2)")
        for keep in ("", ", keepdim=True")
    ]
    + _lines("""
        $q.norm(dim=(0, 1))
        $q.norm(p=0, dim=$d)
        $q.norm(p=float("-inf"), dim=(1, 2), keepdim=True)
        torch.linalg.vector_norm($q, 1, (0, -1))
        torch.linalg.matrix_norm($q)
        torch.linalg.norm($q, dim=(1, 2))
        $q.prod(1).prod(-1, keepdim=True)
        $q.sum(1, keepdim=True).expand_as($q) - $q
        $q.transpose(0, 2).sum((0, 1))
        $q.permute(2, 0, 1).mean(1)
        $q[:, ::2].amax((1, 2))
        $q.flip(0, 2).roll((1, 1), (0, 2))
        $q.diagonal(0, 1, 2).sum(-1)
        $q.movedim((0, 1), (1, 2))
        $q.unflatten(2, (1, -1)).squeeze((0, 2))
        torch.var_mean($q, (0, 2), keepdim=True)[0]
        torch.std_mean($q, (1, 2), correction=0)[1]
        torch.aminmax($q, dim=1, keepdim=True)[0]
        $q.softmax(1).sum((0, 1))
        $q.flatten(1).sum(0)
        $q.view($q.shape[0], -1).mean(1)
        $q.reshape(-1, 2).amax(0)
        $r.sum((0, 2, 3))
        $r.mean((2, 3), keepdim=True) * $r
        $r.transpose(1, 2).reshape($r.shape[0], $r.shape[2], -1)
        $r.permute(0, 2, 3, 1).flatten(0, 2)
        $r.permute(3, 1, 0, 2).contiguous().sum(1)
        $r.var((0, 2, 3), correction=0)
    """),
    "mixed": _lines("""
        $i + torch.tensor(1.5)
        $i * torch.tensor(2, dtype=torch.float16)
        $i / torch.tensor(3, dtype=torch.int8)
        $x + torch.tensor(1, dtype=$t)
        $x * torch.ones(1, dtype=$t)
        $x - torch.full($x.shape, 2, dtype=$tf)
        $b + $b
        $b * $s
        $b * $x
        $b.sum() + $x
        $x.half() + $x.bfloat16()
        $x.half() * 1e5
        $x.half().mean() + $x.double().mean()
        $x.bfloat16().sum() * $x.float()
        $x.to($ti) // 2 + $x
        $x.to($ti) % 3
        $x.to($ti) << 1
        $x.to($ti) * 100
        $x.to($ti).sum() * 1000
        $x.to(torch.complex64) * 1j
        $x + 1j
        ($x + 1j).abs()
        ($x + 1j) * ($x - 2j)
        ($x + 1j).sum($d).real
        ($x + 1j).angle()
        torch.polar($f.abs(), $f)
        torch.view_as_complex(torch.stack([$f.float(), $f.float()], -1))
        torch.where($x > 0, $s, $x)
        torch.where($x > 0, 1.0, 0)
        torch.where($x > 0, 1, 2)
        torch.where($x > 0, $x, torch.tensor($s))
        torch.where($x > 0, $x.half(), 0.5)
        torch.where($b, $x, float("nan"))
        torch.result_type($x, $y)
        torch.promote_types($x.dtype, $y.dtype)
        torch.can_cast($x.dtype, $y.dtype)
        torch.pow($x, $y.abs())
        torch.pow(2, $i.abs())
        torch.bitwise_and($i, 3)
        torch.clamp($i, 0.5, 2.5)
        torch.clamp($x, max=torch.tensor(1.0))
        torch.lerp($f, $f2, torch.tensor(0.3, dtype=$f.dtype))
        torch.addcmul($f, $y, $y2, value=0.1)
        torch.dot($f.flatten(), $f.flatten().to($f.dtype))
        torch.polygamma(1, $f)
        torch.special.erfcx($f)
        torch.special.xlog1py($f, $y)
        torch.special.entr($f)
        torch.special.i1($f)
        torch.special.ndtri($f.sigmoid())
        torch.special.zeta($f.abs() + 1.5, 2.0)
        torch.frexp($f)[1]
        torch.mvlgamma($f.abs() + 3, 2)
        torch.igamma($f.abs(), $f.abs())
        torch.fft.rfft($f.float())
        torch.fft.ifft(torch.fft.fft($f.float())).real
        torch.complex($f, $f).conj().imag
        $c.conj() * $c
        $c.mean()
        $c @ $c.mH
        torch.real($c).neg()
        $x.neg().abs().sqrt().floor().to($t)
        torch.count_nonzero($x) / $x.numel()
        torch.round($f, decimals=2)
        torch.quantize_per_tensor($f.float(), 0.1, 0, torch.qint8).dequantize()
        torch.fake_quantize_per_tensor_affine($f.float(), 0.1, 0, -128, 127)
    """),
}
