"""What fuzz programs write in place: templates of statements, with tensor_tables' placeholders.

And: $o a fresh empty tensor for `out=`.
"""

from __future__ import annotations

__all__ = ["STATEMENTS"]

_TEXT = """
    $x.add_($y)
    $x.add_($s)
    $x.mul_($y)
    $x.sub_($y, alpha=2)
    $x.div_($y)
    $f.sigmoid_()
    $f.relu_()
    $x.neg_()
    $x.zero_()
    $x.fill_($s)
    $x.copy_($y)
    $x.clamp_(min=$s)
    $x += $y
    $x -= 1
    $x *= $s
    $x **= 2
    $x //= 2
    $i &= 3
    $x[0] = $s
    $x[0] = $x[-1]
    $x[$sl] = $s
    $x[$sl] += $s
    $x[$sl] *= $y
    $m[:, $sl] = $s
    $m[:, 0] += $m[:, -1]
    $m[$sl, $sl2] = $m[0, 0].clone()
    $x[..., -1] = $y
    $x[$x > $s] = $s2
    $x[$b] = $s
    $x[$b] += 1
    $x[torch.tensor([0, -1])] = $s
    $x[torch.tensor([0, 0])] += 1
    $m[torch.tensor([0, 1]), torch.tensor([1, 0])] = $m[0, :2]
    $x.t().add_(1)
    $x.view(-1)[0] = $s
    $x.view(-1).mul_(2)
    $m.diagonal().fill_($s)
    $m.diagonal().add_($m[0, 0].clone())
    $m.transpose(0, 1)[0].copy_($m[0, 0].clone())
    $x.flatten().add_(1)
    $x.unbind(0)[0].mul_(2)
    $x.chunk(2)[-1].zero_()
    $x.expand_as($x).add_(1)
    $x.as_strided((min(2, $x.numel()),), (1,)).add_(1)
    $x.select($d, 0).add_($x.select($d, -1))
    $x[1:].copy_($x[:-1])
    $x[:-1].add_($x[1:])
    $x.masked_fill_($x > $s, $s2)
    $x.masked_fill_($b, $s)
    $x.index_fill_($d, torch.tensor([0]), $s)
    $x.index_add_(0, torch.tensor([0, 1]), $x[:2])
    $x.index_copy_(0, torch.tensor([1, 0]), $x[:2].clone())
    $x.index_put_((torch.tensor([0]),), $x[-1:].clone())
    $x.scatter_($d, torch.zeros_like($x, dtype=torch.int64), $s)
    $x.scatter_add_($d, torch.zeros_like($x, dtype=torch.int64), $x.clone())
    $x.cumsum_($d)
    $x.t_()
    $x.unsqueeze_(0)
    $x.squeeze_()
    $x.transpose_(0, -1)
    $x.lerp_($y, 0.5)
    $x.addcmul_($y, $y2)
    $x.detach().add_(1)
    $x.data.mul_(2)
    $f.uniform_(-1, 1)
    $f.normal_()
    $f.bernoulli_(0.5)
    $m.addmm_($m, $m.new_ones($m.shape[1], $m.shape[1]))
    torch.cumsum($x, 0, out=$x)
    torch.add($x, $y, out=$o)
    torch.mul($x, $s, out=$o)
    torch.sum($x, 0, out=$o)
    torch.exp($f, out=$o)
    torch.maximum($x, $y, out=$o)
    torch.cat([$x, $x], out=$o)
    torch.mm($m, $m.t(), out=$o)
    torch.add($x, 1, out=$x)
    torch.where($x > $s, $x, $y, out=$o)
    torch.clamp($x, $s, $s2, out=$o)
    torch.abs($x, out=$o)
    torch.max($x, 0, out=($o, torch.empty(0, dtype=torch.int64)))
    $x.requires_grad_()
    $x.swapaxes_(0, -1)
    $x.sort($d, out=($o, torch.empty(0, dtype=torch.int64)))
    $x.set_($y)
    torch.relu_($f)
    F.relu($f, inplace=True)
    F.dropout($f, 0.5, True, inplace=True)
    torch._foreach_add_([$x], 1)
    torch._foreach_mul_([$x, $x2], 2)
    $x.exponential_()
    $x.fill_diagonal_($s)
    $x.logical_not_()
    $x.bitwise_xor_($y)
    $x.floor_divide_($y)
    $x.remainder_($s)
    $x.copy_($x.flip(0))
    $x.copy_($x.t())
    $x.pow_(2)
    $x.atan2_($y)
    $x.put_(torch.tensor([0]), $x.flatten()[-1:])
"""

STATEMENTS = [line.strip() for line in _TEXT.strip().splitlines()]
