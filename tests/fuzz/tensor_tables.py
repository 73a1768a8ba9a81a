"""What fuzz programs do with tensors: templates of expressions, one per line.

Placeholders are filled by generate.py; whatever does not fit the tensors at hand raises there and
is thrown away, so a template need not state its conditions.

    $x any tensor   $f floating   $i $j integer   $b bool   $c complex   $m matrix   (the subject)
    $y a tensor that broadcasts with the subject, or any
    $s number   $n small integer   $d a dim of the subject   $sl slice   $v new name
    $t dtype    $tf floating dtype   $ti integer dtype
"""

from __future__ import annotations

__all__ = ["EXPRESSIONS"]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


_UNARY = (
    "abs neg sign sin cos tan exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal tanh "
    "sigmoid erf erfc floor ceil round trunc frac square isnan isinf isfinite logical_not "
    "positive asin acos atan sinh cosh asinh acosh atanh exp2 lgamma erfinv signbit isposinf "
    "isneginf deg2rad rad2deg sgn nan_to_num relu logit angle bitwise_not sinc digamma i0 "
    "real conj view_as_real"
).split()
_FUNCTIONAL = (
    "gelu silu relu6 elu softplus hardswish hardsigmoid hardtanh leaky_relu mish selu celu "
    "logsigmoid softsign tanhshrink hardshrink softshrink"
).split()
_BINARY = (
    "add sub mul div maximum minimum fmax fmin pow remainder fmod floor_divide atan2 hypot "
    "copysign logaddexp xlogy eq ne lt le gt ge logical_and logical_or logical_xor "
    "bitwise_and bitwise_or bitwise_xor heaviside nextafter bitwise_left_shift "
    "bitwise_right_shift true_divide logaddexp2 float_power gcd lcm ldexp"
).split()
_OPERATORS = "+ - * / // % ** & | ^ < <= > >= == != << >>".split()
_REDUCE = (
    "sum mean prod amax amin any all argmax argmin nansum std var logsumexp count_nonzero".split()
)

EXPRESSIONS: dict[str, list[str]] = {
    "unary": [f"torch.{name}($x)" for name in _UNARY]
    + [f"torch.{name}($f)" for name in _UNARY]
    + [f"F.{name}($f)" for name in _FUNCTIONAL]
    + _lines("""
        -$x
        ~$i
        ~$b
        abs($x)
        $f.round(decimals=1)
        torch.clamp($x, $s, $s2)
        $x.clamp(min=$s)
        $x.clamp(max=$s)
        torch.clamp($x, $y, $y2)
        $x.clamp_min($y)
        torch.nan_to_num($f, nan=1.0, posinf=5.0)
        F.threshold($f, 0.1, 20.0)
        F.softplus($f, beta=2.0, threshold=3.0)
        F.elu($f, alpha=0.7)
        F.gelu($f, approximate="tanh")
    """),
    "binary": [f"torch.{name}($x, $y)" for name in _BINARY]
    + [f"torch.{name}($x, $s)" for name in _BINARY[:20]]
    + [f"torch.{name}($i, $j)" for name in _BINARY]
    + [f"$x {sign} $y" for sign in _OPERATORS]
    + [f"$x {sign} $s" for sign in _OPERATORS]
    + [f"$s {sign} $x" for sign in _OPERATORS]
    + [f"$i {sign} $j" for sign in _OPERATORS]
    + _lines("""
        torch.div($x, $y, rounding_mode="floor")
        torch.div($x, $y, rounding_mode="trunc")
        torch.div($i, $s, rounding_mode="trunc")
        torch.add($x, $y, alpha=$s)
        torch.sub($x, $y, alpha=2)
        torch.rsub($x, $y)
        torch.where($x > $s, $x, $y)
        torch.where($b, $x, $y)
        torch.where($b, $s, $y)
        torch.where($x != $y, $s, $s2)
        torch.lerp($f, $y, 0.3)
        torch.lerp($f, $y, $y2)
        torch.addcmul($x, $y, $y2, value=2)
        torch.addcdiv($f, $y, $y2, value=0.5)
        $x.masked_fill($b, $s)
        $x.masked_fill($x > $y, $s)
        torch.isclose($f, $y)
        torch.maximum($x, $y) - torch.minimum($x, $y)
        $x * 2 + $y
        ($x + $y) * ($x - $y)
        $x.float() * $y.double()
        $x.pow(2)
        $f ** 0.5
        $f ** -1
        2 ** $x
        $x.mul($y).add_(1)
        F.mse_loss($f, $y)
        F.l1_loss($f, $y, reduction="sum")
        F.smooth_l1_loss($f, $y, reduction="none")
        F.binary_cross_entropy_with_logits($f, $y.sigmoid())
        torch.complex($f, $f * 2)
        $c * $y
        $c.abs()
        $c.conj() + 1
        $c.real + $c.imag
        torch.complex($f, $f).exp()
    """),
    "cast": _lines("""
        $x.to($t)
        $b.to($t)
        $i.to($t)
        $x.float()
        $x.double()
        $b.int()
        $x.half()
        $x.bfloat16()
        $f.bool()
        $x.type_as($y)
        $f.nan_to_num(0.0, 1.0, -1.0).clamp(-9, 9).to($ti)
        $f.nan_to_num(0.0, 1.0, -1.0).clamp(-9, 9).long()
        ($x > $s)
        $x.to($tf).to($tf2)
        $x.to($tf) + $y
        torch.zeros_like($x, dtype=$t) + $y
        $x.contiguous()
        $x.clone()
        $x.clone(memory_format=torch.contiguous_format)
        $x.detach()
        x0.view(torch.int32)
        x0.view(torch.int16)
        $x.to($x.dtype)
        $x.to("cpu")
        $x.to(torch.float64, copy=True)
    """),
    "view": _lines("""
        $x.transpose(0, -1)
        $x.t()
        $x.T
        $m.mT
        $x.permute(*reversed(range($x.dim())))
        $x.reshape(-1)
        $x.view(-1)
        $x.flatten()
        $x.reshape(-1, $x.shape[-1])
        $x.reshape($x.shape[::-1])
        $x.unsqueeze($d)
        $x.squeeze()
        $x.squeeze($d)
        $x.unsqueeze(0).expand($n, *$x.shape)
        $x[None]
        $x[..., None]
        $x[$sl]
        $m[:, $sl]
        $m[$sl, $sl2]
        $x[..., $sl]
        $x[$n]
        $x[-1]
        $m[:, -1]
        $m[$n, $sl]
        $x.narrow($d, 1, 2)
        $x.narrow(-1, -2, 1)
        $x.select($d, $n)
        $x.unfold($d, 2, 1)
        $x.unfold($d, 2, 2)
        $m.diagonal()
        $m.diagonal(1)
        $m.diagonal(-1, 0, 1)
        $x.flip($d)
        $m.flip(0, 1)
        $x.chunk(2, $d)[0]
        $x.chunk(2, $d)[-1]
        $x.split(2, $d)[-1]
        $x.split([1, $x.shape[0] - 1])[1]
        $x.unbind($d)[$n]
        $x.movedim(0, -1)
        $x.swapaxes(0, -1)
        $x.as_strided((2, 2), (1, 1))
        $x.as_strided((2,), (2,), 1)
        $x.expand_as($y)
        $x.broadcast_to(torch.broadcast_shapes($x.shape, $y.shape))
        torch.broadcast_tensors($x, $y)[0]
        $x.unflatten(-1, (-1, 1))
        $x.flatten(0, 1)
        $x.ravel()
        torch.atleast_2d($x)
        $x.view($x.shape)
        $x.repeat(2, *[1] * ($x.dim() - 1))
        $x.repeat_interleave(2, $d)
        $x.roll($n, $d)
        $x.rot90()
        $x.tile(2)
        torch.view_as_real($c)
    """),
    "index": _lines("""
        $x[torch.tensor([0, -1])]
        $m[:, torch.tensor([1, 0, -1])]
        $m[torch.tensor([0, -1]), torch.tensor([1, 0])]
        $m[torch.tensor([[0], [-1]]), torch.tensor([0, 1])]
        $m[torch.tensor([0, 1, 0]), 1:]
        $m[[0, -1]]
        $m[..., [0, 0, 1]]
        $x[$b]
        $x[$x > $s]
        $m[$m[:, 0] > 0]
        $x[torch.tensor(1)]
        $x[None, torch.tensor([0])]
        torch.index_select($x, $d, torch.tensor([0, 0, 1]))
        torch.gather($x, $d, $x.argsort($d))
        $x.take(torch.tensor([0, 1, -1]))
        torch.take_along_dim($x, $x.argsort($d), $d)
        $x.masked_select($x > $s)
        torch.nonzero($x)
        $x.scatter($d, torch.zeros_like($x, dtype=torch.int64), $x)
        $x.scatter($d, $x.argsort($d), $s)
        $x.scatter_add($d, torch.zeros_like($x, dtype=torch.int64), $x)
        $x.index_add(0, torch.tensor([0]), $x[:1])
        $x.index_copy(0, torch.tensor([1]), $x[:1])
        $x.index_fill($d, torch.tensor([0]), $s)
        $x.masked_scatter($x > $s, $x * 2)
        $x.index_put((torch.tensor([0, 0]),), $x[:2], accumulate=True)
        torch.index_put($x, (torch.tensor([-1]),), $x[:1])
        $x.scatter_reduce($d, torch.zeros_like($x, dtype=torch.int64), $x, "amax")
        torch.select_scatter($x.contiguous(), $x.select($d, 0) * 2, $d, -1)
        torch.slice_scatter($x.contiguous(), $x[:1] + 1, 0, 1, 2)
        torch.diagonal_scatter($m.contiguous(), $m.diagonal() * 2)
        F.one_hot($i.long().clamp(0, 4), 5)
        F.embedding($i.long().clamp(0, 2), torch.arange(12.0).view(3, 4))
        torch.bucketize($f, torch.tensor([-1.0, 0.0, 1.0]))
        torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0], dtype=$f.dtype), $f.contiguous())
    """),
    "reduce": [f"$x.{name}()" for name in _REDUCE]
    + [f"$x.{name}($d)" for name in _REDUCE]
    + [f"$x.{name}($d, keepdim=True)" for name in _REDUCE]
    + [f"$f.{name}($d)" for name in _REDUCE]
    + [f"$m.{name}((0, 1))" for name in "sum mean amax amin std any all".split()]
    + _lines("""
        $x.sum($d, dtype=$tf)
        $i.sum($d, dtype=$t)
        $x.sum(dtype=torch.float64)
        $i.prod($d, dtype=torch.float32)
        $x.mean($d, dtype=torch.float64)
        $x.max()
        $x.min()
        $x.max($d)[0]
        $x.max($d).indices
        $x.min($d, keepdim=True).values
        $x.median()
        $x.median($d).values
        $f.norm()
        $f.norm(dim=$d)
        $f.norm(p=1, dim=$d, keepdim=True)
        $f.norm(p=float("inf"))
        torch.linalg.vector_norm($f, 3, dim=$d)
        torch.std($f, $d, correction=0)
        torch.var($f, dim=$d, correction=2)
        torch.var_mean($f, $d)[1]
        torch.std_mean($f)[0]
        torch.aminmax($x)[1]
        torch.aminmax($x, dim=$d)[0]
        $x.sum(())
        $x.sum([])
        $x.amax(())
        $x.cumsum($d)
        $x.cumprod($d)
        $x.cummax($d)[0]
        $x.cummin($d)[1]
        torch.logcumsumexp($f, $d)
        torch.diff($x)
        torch.trace($m)
        $x.sort($d)[0]
        $x.sort(stable=True, dim=$d)[1]
        $x.argsort(dim=$d, descending=True, stable=True)
        $x.topk(2, $d)[0]
        $x.kthvalue(1, $d)[0]
        torch.unique($x)
        $x.sum() / $x.numel()
        ($x * $y).sum($d)
        $x.float().mean($d, keepdim=True) + $y
        torch.dist($f, $f2)
        torch.all($x > $s)
        torch.any($b, $d)
        torch.histc($f.float(), 4, -2, 2)
    """),
    "norm": _lines("""
        F.softmax($f, $d)
        F.log_softmax($f, $d)
        F.softmax($x, $d, dtype=torch.float32)
        F.layer_norm($f, $f.shape[-1:])
        F.layer_norm($f, $f.shape[-1:], $f[0], $f[-1])
        F.normalize($f, dim=$d)
        F.group_norm($f[None], 1)
        F.rms_norm($f, $f.shape[-1:])
        F.batch_norm($m, None, None, training=True)
        ($f - $f.mean($d, keepdim=True)) / ($f.std($d, keepdim=True) + 1e-3)
        ($f - $f.amax($d, keepdim=True)).exp() / $f.exp().sum($d, keepdim=True)
        $f * torch.rsqrt($f.pow(2).mean(-1, keepdim=True) + 1e-5)
        F.cross_entropy($m.float(), torch.zeros($m.shape[0], dtype=torch.int64))
        F.nll_loss(F.log_softmax($m.float(), 1), torch.ones($m.shape[0], dtype=torch.int64))
        F.kl_div(F.log_softmax($f, -1), F.softmax($f, -1), reduction="batchmean")
        F.cosine_similarity($f, $f * 2 + 1, dim=$d)
        F.glu($f, $d)
        F.avg_pool1d($m[None], 2)
        F.max_pool1d($m[None], 2)
        F.pad($x, (1, 2))
        F.pad($x, (1, 0), value=$s)
        F.pad($x, (-1, 1))
        F.pad($m[None], (1, 1), mode="reflect")
        F.interpolate($m[None], scale_factor=2)
    """),
    "product": _lines("""
        $m @ $m.mT
        $m.mT @ $m
        torch.mm($m, $m.t())
        $m @ $m[0]
        $x.matmul($x.t())
        torch.bmm($m[None], $m.mT[None])
        torch.addmm($m[:, :1], $m, $m.t(), beta=0.5, alpha=2)
        torch.dot($x.flatten(), $x.flatten())
        torch.outer($x.flatten()[:3], $x.flatten()[-2:])
        torch.mv($m, $m[-1])
        F.linear($m, $m[:2], $m[0, :2])
        torch.einsum("ij,kj->ik", $m, $m)
        torch.einsum("...j->...", $x)
        torch.tensordot($m, $m, dims=([0], [0]))
        torch.kron($m[:2, :2], $m[:1, :2])
        ($m @ $m.mT).relu() + 1
        torch.baddbmm($m[None, :, :1], $m[None], $m.mT[None])
        $m.triu()
        $m.tril(-1)
        torch.cdist($m.float(), $m.float())
        torch.cross($m[:, :3], $m[:, -3:], dim=1)
        torch.diag($m)
        torch.diag_embed($x)
        torch.inner($x, $x)
        torch.baddbmm($m[None, :, :1], $m[None], $m.mT[None], beta=0)
        torch.linalg.norm($m.float())
        torch.meshgrid($x.flatten()[:2], $x.flatten()[:3], indexing="ij")[0]
        F.scaled_dot_product_attention($m.float()[None], $m.float()[None], $m.float()[None])
    """),
    "join": _lines("""
        torch.cat([$x, $x * 2])
        torch.cat([$x, $y], $d)
        torch.cat([$x, $x[:1].double()], 0)
        torch.cat((torch.empty(0), $x))
        torch.stack([$x, $x + $s], $d)
        torch.stack([$x, $x, $x], -1).sum(-1)
        torch.hstack([$x, $x])
        torch.vstack(($x, $x))
        torch.cat([$x.flatten(), $y.flatten()])
        torch.block_diag($m, $m)
        torch.cat([$x[:0], $x], 0)
        torch.cat([$m, $m.flip(0)], 1)
        torch.stack($x.unbind(0), -1)
        torch.column_stack([$x, $x])
        torch.cartesian_prod($x.flatten()[:2], $x.flatten()[:3])
        torch.combinations($x.flatten()[:4])
    """),
    "make": _lines("""
        torch.zeros($x.shape[-1])
        torch.ones_like($x)
        torch.full_like($x, $s)
        torch.full((2, $x.shape[-1]), $s)
        torch.full($x.shape, $s, dtype=$t)
        torch.arange($x.shape[-1])
        torch.arange(0, 3, 0.5)
        torch.arange($x.shape[-1], 0, -1, dtype=$t)
        torch.linspace(-1, 1, $x.shape[-1])
        torch.eye($x.shape[-1])
        torch.tensor([1, 2, 3])
        torch.tensor($s)
        torch.tensor([[1.5, $s], [0, 2]])
        torch.empty($x.shape).fill_($s)
        torch.empty_like($x).copy_($x)
        $x.new_zeros(3)
        $x.new_full((2,), $s)
        $x.new_tensor([1, 0])
        torch.scalar_tensor($s)
        torch.zeros($x.shape, dtype=$t)
        torch.tensor($s, dtype=$t) + $x
        torch.as_tensor([$s, $s2])
        torch.zeros(0, 3)
        torch.tril_indices(3, 3)
        torch.logspace(0, 1, 3)
        torch.zeros(2, 0).sum(1)
    """),
    "random": _lines("""
        torch.rand($x.shape)
        torch.randn_like($f)
        $f + torch.randn($f.shape[-1]) * 0.1
        torch.randint(0, 5, $x.shape)
        F.dropout($f, 0.5, True)
        F.dropout($f, 0.0, True)
        F.dropout($f, 0.3, False)
        torch.bernoulli($f.sigmoid())
        torch.randperm($x.shape[-1])
        $f.clone().uniform_(-1, 1)
        torch.empty($x.shape).normal_(0, 2)
        torch.multinomial($f.abs().nan_to_num(1, 1, 1).flatten() + 0.1, 2)
        torch.normal(0.0, 1.0, (3,))
        $x[torch.randperm($x.shape[0])]
    """),
}
