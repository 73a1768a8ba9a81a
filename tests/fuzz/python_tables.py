"""What fuzz programs do in Python around tensors: blocks of statements with placeholders.

The placeholders of tensor_tables.py, and: $e an expression of the tables there, $e2 another, $v/$w
new names that later statements may use when they hold tensors, $B an indented block of statements.
"""

from __future__ import annotations

__all__ = ["BLOCKS", "SELF_BLOCKS"]

_TEXT = """
for i in range(3):
    $x = $x + i
---
for i in range(3):
    $v = $e
    if i == 1:
        break
else:
    $v = $x
---
$v = $x
for n, part in enumerate([$x, $y]):
    $v = $v * 2 + n
    if n > 0:
        continue
    $v = $v - 1
---
n = 0
while n < 3:
    n += 1
    $v = $x * n
---
$w = [$x * i for i in range(3)]
$v = $w[-1] + $w[0]
---
parts = []
for i in range(2):
    parts.append($x + i)
$v = torch.stack(parts)
---
parts = []
for row in $x:
    parts.append(row * 2)
parts.reverse()
$v = torch.cat([p.flatten() for p in parts])
---
table = {"a": $x, "b": $y}
for key, value in table.items():
    table[key] = value + 1
table["c"] = table.pop("a")
$v = table["c"]
$w = table.get("b")
---
$v = sum(part.sum() for part in [$x, $y])
---
def gen():
    for i in range(3):
        yield $x * i
$v = sum(gen())
---
def gen():
    got = yield $x
    yield $x + 1
it = gen()
$v = next(it)
$w = next(it)
---
inner = lambda z, k=2: z * k
$v = inner($x)
---
scale = 3
def inner(z):
    return z * scale
scale = 4
$v = inner($x)
---
total = $x
def inner(z):
    nonlocal_sum = total + z
    return nonlocal_sum, z
$v, $w = inner($y)
---
$v = helper($x, $x, scale=3, a=1)
---
args, named = ($x, $x), {"scale": 0.5}
$v = helper(*args, **named)
---
first, *rest = $x.unbind(0)
$v = first + len(rest)
---
try:
    $v = $e
    raise ValueError("stop")
except ValueError as error:
    $v = $x * len(str(error))
finally:
    STATE["log"].append("finally")
---
try:
    $v = $x.view(7, 11, 13)
except RuntimeError:
    $v = $x + 1
---
try:
    $v = {"k": $x}["missing"]
except (KeyError, IndexError) as error:
    $v = $x * 2
    STATE["log"].append(repr(error))
---
try:
    try:
        $v = $e
        raise Stop("inner")
    finally:
        STATE["count"] += 1
except Stop:
    $v = $x - 1
else:
    $v = $x - 2
---
try:
    $v = $x @ torch.ones(5, 7)
except Exception as error:
    print(type(error).__name__)
    $v = $x
---
with torch.no_grad():
    $v = $e
---
with torch.no_grad():
    $x.mul_(2)
---
with torch.enable_grad():
    $v = $x * 2
---
with torch.inference_mode():
    $v = $x * 2
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = $m.float() @ $m.float().t()
---
torch.set_grad_enabled(False)
$v = $x * 3
torch.set_grad_enabled(True)
---
print("sum", $x.shape, $x.dtype)
---
print($b)
---
print(f"{$x.dim():>3} {$x.numel()!r} {k:.2f}")
---
$v = f"{$x.shape} {str($x.dtype)[6:]}"
---
n = $i.long().abs().sum().item()
$v = $x * n
---
n = $b.sum().item()
$v = $x + n if n > 1 else $x - n
---
$v = $i.tolist()
---
if $b.any():
    $v = $e
else:
    $v = $x
---
if $i.sum() > 2:
    $v = $x + 1
    STATE["log"].append("big")
else:
    $v = $x - 1
---
if $x.shape[0] > 2 and $x.dim() == 2:
    $v = $x[1:]
elif $x.dtype == torch.float32:
    $v = $x * 2
else:
    $v = $x
---
if k > 1:
    $v = $e
else:
    $v = $x * k
---
if k > 100:
    return $x
---
if $x.numel() == 3:
    return $x * k
---
if bool($b.all()):
    return $x, "early"
---
$v = $x if $x.requires_grad else $x.float()
---
STATE["count"] += 1
---
STATE["log"].append($x.shape[0])
---
STATE["last"] = $x
---
STATE.setdefault("seen", []).append(k)
---
global COUNT
COUNT += 2
$v = $x + COUNT
---
BOX.value = $x
BOX.n += 1
---
BOX.n += $x.dim()
$v = $x * BOX.n
---
BOX.value = $x
BOX.value += 1
$v = BOX.value
---
items.append($x)
---
items[0] = $x
---
items += [k, $y]
---
items.insert(0, k + 1)
items.pop()
---
$v = [$x, items]
---
$v = len(items) * $x
---
table = {}
table.setdefault("a", []).append($x)
table.update(b=k, **{"c": 3})
$v = table
---
$v = sorted([3, 1, 2], key=lambda n: -n)
---
$v = {n: $x * n for n in (1, 2)}
---
$v = list(zip([1, 2], [$x, $y]))
---
$v = Pair($x, k)
$w = $v.first + $v.second
---
$v = Pair($x, k)._replace(second=$y)
---
$v = tuple(map(lambda z: z + 1, [$x, $y]))
---
$v = functools.reduce(lambda a, b: a + b, [$x, $x, $x])
---
$v = functools.partial(helper, scale=2)($x)
---
$v = math.sqrt(k + 4) * $x
---
$v = (z := $x * 2) + z
---
a, b = $x, $y
a, b = b, a
$v, $w = a, b
---
del k
k = 2
---
match $x.dim():
    case 0:
        $v = $x
    case 1 | 2:
        $v = $x * 2
    case _:
        $v = $x + 1
---
assert $x.dim() < 9, "too many"
---
$v = isinstance($x, torch.Tensor) and hasattr($x, "grad")
---
$v = $x.size(0) * k // 2
---
$v = list($x.shape) + [$x.dim(), $x.numel(), len($x)]
---
$v = $x.shape[0:1] + (1,)
---
jitmagic.graph_break()
---
$v = $e
jitmagic.graph_break()
$w = $e2
---
for i in range(2):
    print("step", i)
    $x = $x + i
---
for i in range(2):
    $x.add_(i)
    jitmagic.graph_break()
---
$v = $x[$sl]
$v.add_(1)
---
$v = $x.view(-1)
jitmagic.graph_break()
$v.add_(1)
---
$v = $x.t()
$v.mul_(2)
$w = $x + 1
---
$v = $x.detach()
$v.add_(1)
---
$v = $x.clone()
$v[$sl] = $s
---
$v = torch.empty(0)
torch.add($x, $y, out=$v)
---
$v = torch.empty_like($x)
$v.copy_($y)
---
$v = [$x] * 2
$v[0].add_(1)
---
$v = ($x, $x)
---
if k == 77:
    raise Stop(f"k is {k}")
---
raise_it = k < -50
if raise_it:
    raise ValueError("never")
---
@dataclasses.dataclass
class Point:
    at: object
    n: int = 2
p = Point($x)
p.n += 1
$v = p.at * p.n
---
class Base:
    def run(self, z):
        return z + 1
class Child(Base):
    def run(self, z):
        return super().run(z) * 2
$v = Child().run($x)
---
$v = {1, 2, k} | {3}
---
$v = "".join(str(n) for n in range(3)) + "%d" % k
---
$v = any(p.dim() > 1 for p in [$x, $y])
---
$v = [*($x, $y), *items[:1]]
---
$v = dict(a=$x, **{"b": $y})
---
$v = next(iter([$x]))
---
$v = getattr($x, "T")
---
$v = torch.Size([2, 3]).numel() + $x
---
$v = -k if k else 3
---
$v = slice(0, 2)
$w = $x[$v]
---
$v = collections.defaultdict(list)
$v["a"].append($x)
---
$v = collections.OrderedDict(a=$x)
$v.move_to_end("a")
---
$v = itertools.chain([1], [2])
$w = list($v)
---
$v = max(k, 2) + min([1, 2, 3]) + abs(-k) + round(2.567, 1)
---
$v = divmod(7, 2)
$w = $x * $v[0]
---
$v = int(True) + float("1.5") + bool(k)
---
$v = $x.sum().item() == $x.sum().item()
---
assert $x.sum().item() is not None
$v = $x
"""

_SELF_TEXT = """
self.count += 1
$v = $x + self.count
---
self.last = $x
---
self.flag = not getattr(self, "flag", False)
$v = $x * 2 if self.flag else $x
"""

_MODULE_TEXT = """
$v = self.linear(torch.ones(2, 4)) + self.weight
---
self.seen += 1
$v = $x + self.seen.sum()
---
self.seen.copy_(self.seen * 0.9 + 0.1)
---
self.seen = self.seen + 1
---
$v = $x * self.weight.sum()
---
$v = torch.relu(self.linear(self.seen[None]))
---
$v = [p.shape for p in self.parameters()]
---
if self.training:
    $v = $x * 2
else:
    $v = $x
---
$v = F.dropout($f, 0.5, self.training)
"""

_METHOD_TEXT = """
self.items.append($x)
---
self.items = [*self.items, k]
$v = len(self.items) * $x
"""


def _blocks(text: str) -> list[str]:
    return [block.strip("\n") for block in text.split("---\n")]


BLOCKS = _blocks(_TEXT)
SELF_BLOCKS = {
    "module": _blocks(_SELF_TEXT) + _blocks(_MODULE_TEXT) * 2,
    "method": _blocks(_SELF_TEXT) + _blocks(_METHOD_TEXT),
}
