"""What fuzz programs do with state that is not theirs: autocast blocks, lists that only grow.

Blocks as in python_tables.py, with its placeholders.
"""

from __future__ import annotations

__all__ = ["BLOCKS", "METHOD_BLOCKS"]

_AUTOCAST = """
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = $e
---
with torch.autocast("cpu", dtype=torch.float16):
    $v = $m @ $m.t()
$w = $v + $e
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = $m.float() @ $m.float().t()
    with torch.autocast("cpu", enabled=False):
        $w = $v.float() @ $v.float()
    $v = $v @ $v
---
with torch.autocast("cpu", enabled=False):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        $v = F.linear($f.float(), weight($f.float(), 3, $f.shape[-1]))
    $w = F.linear($f, weight($f, 3, $f.shape[-1]))
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.autocast("cpu", dtype=torch.float16):
        $v = $m.float() @ $m.float().t()
    $w = $m.float().t() @ $m.float()
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = $m.float() @ $m.float().t()
    jitmagic.graph_break()
    $w = $v @ $m.float()
---
with torch.autocast("cpu", dtype=torch.bfloat16, enabled=k == 2):
    $v = $m.float() @ $m.float().t()
    print($v.dtype)
    with torch.autocast("cpu", enabled=False):
        jitmagic.graph_break()
        $w = $m.float() @ $m.float().t()
---
@torch.autocast("cpu", dtype=torch.bfloat16)
def halved(z):
    return z.float() @ z.float().t()
$v = halved($m)
---
@torch.autocast("cpu", dtype=torch.bfloat16)
def halved(z):
    print(torch.is_autocast_enabled("cpu"))
    return F.linear(z.float(), weight(z.float(), 2, z.shape[-1]))
$v = halved($f) * 2
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
$w = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()
---
try:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        $v = $m.float() @ $m.float().t()
        raise Stop("inside")
except Stop:
    $w = $m.float() @ $m.float().t()
---
for i in range(3):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=i != 1):
        $v = $m.float() @ $m.float().t()
    STATE["log"].append(str($v.dtype))
---
with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
    $v = $m.float() @ $m.float().t()
$w = $v + $m.float() @ $m.float().t()
---
with torch.no_grad():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        $v = $m.float() @ $m.float().t()
        with torch.enable_grad():
            $w = $m.float() @ $m.float().t()
---
with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
    $v = F.linear($m, $m) + F.linear($m, $m.detach())
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = F.linear($m, $m)
    $m.mul_(2)
    $w = F.linear($m, $m)
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = F.cross_entropy(F.linear($m, $m), torch.arange($m.shape[0]))
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = torch.cat([$f.float(), $f.bfloat16()])
    $w = F.softmax($f, -1), F.layer_norm($f, $f.shape[-1:]), $f.sum(), $f.exp(), F.gelu($f)
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    if $m.sum() > 0:
        $v = $m.float() @ $m.float().t()
    else:
        $v = $m.float().t() @ $m.float()
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    n = ($m.float() @ $m.float().t()).sum().item()
    $v = $m.float() @ $m.float().t() * (n > 0)
---
def cast_gen():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield $m.float() @ $m.float().t()
        yield $m.float().t() @ $m.float()
$v, $w = cast_gen()
---
def early():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if k == 2:
            return $m.float() @ $m.float().t()
    return $m
$v = early()
$w = $m.float() @ $m.float().t()
---
block = torch.autocast("cpu", dtype=torch.bfloat16)
with block:
    $v = $m.float() @ $m.float().t()
with block as entered:
    $w = $m.float().t() @ $m.float()
---
with torch.amp.autocast("cpu", torch.bfloat16):
    $v = $m.float() @ $m.float().t()
    $w = torch.ones_like($v)
    torch.mm($m.float(), $m.float().t(), out=torch.empty($v.shape))
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = torch.utils.checkpoint.checkpoint(lambda z: z @ z.t(), $m.float(), use_reentrant=False)
---
with torch.autocast("cuda", enabled=False):
    $v = $m.float() @ $m.float().t()
---
stack = contextlib.ExitStack()
stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
$v = $m.float() @ $m.float().t()
stack.close()
---
@torch.autocast("cpu", dtype=torch.bfloat16)
def outer(z):
    @torch.autocast("cpu", enabled=False)
    def inner(z):
        return z @ z.t()
    return inner(z), z @ z.t()
$v, $w = outer($m.float())
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    $v = $m.float() @ $m.float().t()
    $v += $m.float() @ $m.float().t()
    $v[0] = 1
    return $v
"""

_LISTS = """
items.append($x)
items.append($y)
$v = items[-1] + 1
---
n = len(items)
items.append($x)
$v = $x + n + len(items)
---
before = items[0] if items else 3
items.append(k)
$v = $x * before
---
other = items
other.append($x)
$v = items[-1] * 2
---
other = items
items += [$x]
other.append(k)
$v = other is items, len(other)
---
items.append(k)
items.extend(items)
---
items.extend(items)
items.append($x)
---
items += items
$v = len(items)
---
items.extend(n for n in range(2))
items.extend(z * 2 for z in [$x, $y])
---
items.extend(len(items) for _ in range(2))
---
items.append(items)
$v = items[-1] is items
items.pop()
---
items.append(len(items))
jitmagic.graph_break()
items.append(len(items))
---
items.append($x)
$x.add_(1)
items.append($x)
---
items.append($x * 2)
items[-1].add_(1)
---
items.append([k])
items[-1].append($x)
---
table = {"a": items}
table["a"].append($x)
$v = table
---
def grow(z):
    items.append(z)
    return len(items)
$v = grow($x), grow($y)
---
def grow(z, into=items):
    into.append(z)
    return z
$v = grow($x) + grow($x)
---
for i in range(2):
    items.append($x * i)
    print(len(items))
---
for part in items:
    if isinstance(part, int):
        STATE["log"].append(part)
---
for part in list(items):
    items.append(part)
---
for part in items:
    if len(items) > 4:
        break
    items.append(part)
---
STATE["log"].append(k)
STATE["log"].append(len(items))
---
STATE["log"].extend(STATE["log"])
---
STATE["log"] += [k, "a"]
$v = STATE["log"][-1]
---
log = STATE["log"]
log.append(1)
STATE["log"] = [0]
log.append(2)
$v = log
---
log = STATE["log"]
STATE["log"] = []
STATE["log"].append(k)
BOX.log = log
BOX.log.append(3)
---
BOX.grown = items
BOX.grown.append($x)
items.append(k)
---
BOX.grown = BOX.__dict__.get("grown", [])
BOX.grown.append($x.sum())
$v = sum(BOX.grown)
---
items.append($x)
items.pop(0)
items.append(k)
---
items.append(k)
del items[:]
items.append($x)
---
items.append(k)
items = [*items, 1]
items.append(2)
$v = items
---
items.append(k)
$v = items + [1], items * 2, items[::-1], tuple(items)
---
items.append($x)
$v = $x in [1] or k in [z for z in items if isinstance(z, int)]
---
items.append(k)
if items:
    $v = $x + 1
---
if not items:
    items.append($x)
else:
    items.append(k)
---
items.append(k)
$v = items == [1, 2, k]
---
try:
    items.append($x)
    raise Stop("after")
except Stop:
    items.append(k)
---
items.append(items.pop() if items else k)
---
items.append($x.sum().item())
$v = len(items)
---
items.append($x.view(-1))
$x.mul_(2)
---
grown = [items, items]
grown[0].append(k)
grown[1].append($x)
$v = grown
---
first, second = items, list(items)
first.append(k)
second.append($x)
$v = second
---
items.__iadd__([k])
list.append(items, $x)
list.extend(items, (1, 2))
---
push = items.append
push(k)
push($x)
---
functools.reduce(lambda into, z: into.append(z) or into, [k, 1], items)
---
$v = [items.append(n) for n in range(2)]
---
it = iter(items)
items.append($x)
$v = list(it)
---
items.append(k)
$v = len(items), items.index(k), items.count(k)
---
items.append($x)
items.sort(key=lambda z: 0)
---
$v = copy.copy(items)
items.append(k)
$w = copy.copy(items)
---
held = (items, STATE["log"])
held[0].append(k)
held[1].append($x.shape)
---
held = (items,)
jitmagic.graph_break()
held[0].append(k)
jitmagic.graph_break()
items.append($x)
"""

_METHOD_TEXT = """
self.items.append($x.sum())
$v = len(self.items)
---
self.items.append(k)
self.items = self.items + [1]
self.items.append(2)
---
items.append(k)
self.items.extend(items)
---
self.items = items
self.items.append(k)
items.append($x)
---
self.items += self.items[-1:]
---
held = self.items
held.append(k)
self.items.append(len(held))
"""


def _blocks(text: str) -> list[str]:
    return [block.strip("\n") for block in text.split("---\n")]


BLOCKS = _blocks(_AUTOCAST) + _blocks(_LISTS)
METHOD_BLOCKS = _blocks(_METHOD_TEXT)
