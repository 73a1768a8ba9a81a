"""What fuzz programs do with Python's larger constructs: classes, generators, decorators,
iterators, strings, containers of containers, modules made of modules.

Blocks as in python_tables.py, with its placeholders.
"""

from __future__ import annotations

__all__ = ["BLOCKS", "MODULE_BLOCKS"]

_TEXT = """
class Meter:
    total = 0
    def __init__(self, start):
        self.start = start
    @property
    def doubled(self):
        return self.start * 2
    @classmethod
    def of(cls, value):
        return cls(value)
    @staticmethod
    def plus(value, n=1):
        return value + n
    def __call__(self, z):
        return self.plus(z) + self.doubled
$v = Meter.of(k)($x)
---
class Bag:
    def __init__(self, *parts):
        self.parts = list(parts)
    def __getitem__(self, n):
        return self.parts[n]
    def __len__(self):
        return len(self.parts)
    def __iter__(self):
        return iter(self.parts)
    def __contains__(self, part):
        return part is self.parts[0]
    def __add__(self, other):
        return Bag(*self.parts, *other.parts)
    def __eq__(self, other):
        return len(self) == len(other)
bag = Bag($x, $y) + Bag($x)
$v = bag[-1] * len(bag) + sum(p.numel() for p in bag)
$w = [$x in bag, bag == Bag(1, 2, 3), bool(bag)]
---
class Slots:
    __slots__ = ("a", "b")
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
s = Slots()
s.a = $x
s.b = s.a + 1
$v = s.b
---
@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 2.0
    parts: tuple = ()
    extra: list = dataclasses.field(default_factory=list)
c = dataclasses.replace(Config(), scale=k)
c.extra.append($x)
$v = c.extra[0] * c.scale + len(c.parts)
---
class Mode(enum.Enum):
    FAST = 1
    SLOW = 2
mode = Mode.FAST if k == 2 else Mode(2)
$v = $x * mode.value if mode is Mode.FAST else $x - 1
---
class Row(typing.NamedTuple):
    first: object
    n: int = 3
row = Row($x)
a, n = row
$v = a * n + row.n
---
def twice(f):
    @functools.wraps(f)
    def wrapped(*args, **named):
        return f(f(*args, **named), **named)
    return wrapped
@twice
def step(z, n=1):
    return z + n
$v = step($x, n=2)
---
@contextlib.contextmanager
def noted(name):
    STATE["log"].append(name)
    try:
        yield name
    finally:
        STATE["count"] += 1
with noted("inner") as name:
    $v = $x * len(name)
---
class Scope:
    def __enter__(self):
        STATE["count"] += 1
        return self
    def __exit__(self, kind, value, trace):
        STATE["log"].append(kind.__name__ if kind else None)
        return kind is Stop
with Scope() as scope:
    $v = $x + 1
    raise Stop("left")
$w = $v * 2
---
def walk(n):
    if n:
        yield $x * n
        yield from walk(n - 1)
    return n
$v = list(walk(3))
---
def gen():
    total = 0
    while True:
        got = yield total
        if got is None:
            return
        total = total + got
it = gen()
next(it)
it.send($x)
$v = it.send($x)
it.close()
---
def fact(n):
    return 1 if n < 2 else n * fact(n - 1)
$v = $x * fact(4)
---
def bump(n=1, log=[]):
    log.append(n)
    return len(log)
bump()
$v = $x + bump(2)
---
def outer():
    n = 0
    def inner():
        nonlocal n
        n += 1
        return $x * n
    return inner
f = outer()
f()
$v = f()
---
def early():
    for i in range(5):
        try:
            if i == 2:
                return $x * i
        finally:
            STATE["log"].append(i)
$v = early()
---
try:
    try:
        raise KeyError("a")
    except KeyError as error:
        raise ValueError("b") from error
except ValueError as error:
    $v = $x + len(error.args) + (error.__cause__ is not None)
---
try:
    $v = $x[99]
except IndexError:
    $v = $x
---
while True:
    k = k + 1
    if k > 4:
        break
$v = $x + k
---
n, total = 10, 0
while n := n - 3:
    if n < 0:
        break
    total += n
else:
    total = -1
$v = $x + total
---
first, *_, last = list(range(k, k + 4))
$v = $x * first + last
---
(a, b), [c, *d] = ($x, $y), [1, 2, 3]
$v = a * c + len(d)
---
$v = {n: z.sum() for n, z in enumerate([$x, $x * 2]) if n}
---
$v = [a * b for a in [$x, $x + 1] for b in (1, 2) if b > 1]
---
$v = {n % 2 for n in range(5)} & {0, 1, 2} ^ {2}
---
$v = {"a": 1} | {"b": $x}
$v |= {"c": k}
---
parts = [1, 2, 3, 4]
parts[1:3] = [$x]
del parts[0]
parts *= 2
$v = parts
---
parts = [$x, $y, k]
parts.extend(reversed(parts[:2]))
parts.remove(k)
$v = parts[::-1], len(parts)
---
$v = list(itertools.accumulate([1, 2, 3])) + list(itertools.repeat(k, 2))
---
$v = [a * b for a, b in itertools.product([$x], (1, 2))]
---
$v = list(itertools.islice(itertools.count(k), 2, 5))
---
$v = [p * n for n, p in itertools.zip_longest([1, 2], [$x], fillvalue=1)]
---
$v = [a + b for a, b in itertools.pairwise([$x, $x, $x])]
---
$v = list(filter(None, [0, k, ""])) + list(map(int.__add__, [1], [2]))
---
$v = list(itertools.starmap(lambda a, b: a * b, [($x, 2), ($x, 3)]))
---
$v = [n for n, _ in itertools.groupby([1, 1, 2])]
---
for n, (a, b) in enumerate(zip([$x, $y], [1, 2], strict=True), start=5):
    $v = a * b + n
---
text = "a-b-c".split("-")
$v = "+".join(reversed(text)).upper().replace("A", str(k)).center(9, "*")
---
name = f"{k:05.1f}|{'x' * 3!r:>8}|{$x.shape[-1]=}"
$v = name.partition("|")[2].strip().encode()
---
$v = "k %s, %r %d" % (k, "q", 3) + "{a}{0}".format(1, a=2)
---
$v = collections.Counter("abca").most_common(1)
---
$v = collections.deque([$x, 1], maxlen=2)
$v.append(k)
---
$v = collections.ChainMap({"a": $x}, {"b": 2})["b"]
---
$v = operator.itemgetter(1)([$x, $y]), operator.attrgetter("shape")($x)
---
$v = operator.mul($x, 2) + operator.neg($x)
---
$v = copy.copy([$x, k]), copy.deepcopy({"a": [k]})
---
$v = type($x) is torch.Tensor, issubclass(bool, int), callable(helper)
---
$v = 1 < k <= 5 != 3, k is not None, not k
---
$v = k if k in (2, 5) else (k and 1) or "no"
---
rows, cols = $m.shape
$v = $m.reshape(cols, rows) / (rows * cols) ** 0.5
---
b, *rest = $x.shape
$v = $x.view(b, -1)
---
$v = $x.shape == $y.shape, $x.stride(), $x.is_contiguous(), $x.dtype.is_floating_point
---
$v = math.prod($x.shape) + math.floor(2.7) + math.isclose(k, 2.0)
---
$v = math.inf > k, float("nan") != 0, math.log2(8), math.pi
---
$v = $x.new_zeros($x.shape).fill_(k) + torch.finfo(torch.float32).eps
---
$v = torch.is_tensor($x), torch.is_floating_point($x), $x.is_complex(), $x.element_size()
---
$v = torch.tensor([[k, 1], [2, 3]]) * len(items)
---
$v = torch.stack([torch.as_tensor(n) for n in range(3)]) + k
---
$v = $x.clone()
for i in range($x.shape[0]):
    $v[i] = $x[i] * i
---
$v = torch.zeros_like($x)
for i, row in enumerate($x):
    $v[i] += row.sum()
---
$v = $x
for dim in range($x.dim()):
    $v = $v.cumsum(dim).flip(dim)
---
state = torch.zeros($m.shape[0], 3)
for column in $m.unbind(1):
    state = torch.tanh(state * 0.5 + column[:, None])
$v = state
---
$v, $w = torch.max($x, $d)
---
$v, *rest = $x.split(2)
$w = len(rest)
---
$v = $x.sort($d).values, $x.max($d)
---
$w = $x.view(-1)
$v = $w.view($x.shape)
$v[0] = 1
$w.add_(1)
---
$w = $x[1:]
$v = $w.t()
$v.mul_(2)
$w = $w + $x[1:]
---
$w = $m.t()[1:].unsqueeze(0)
$w += 1
$v = $m.sum(0)
---
$v = $x.clone().view(-1)
a, b = $v[1:], $v[:-1]
a.copy_(b.clone())
b.mul_(2)
---
$v = $x.clone()
$w = $v.unbind(0)
$w[0].zero_()
---
$v = $x * 1
$w = $v.detach()
$w.add_(1)
---
$v = torch.empty($x.shape, dtype=$x.dtype)
$w = torch.mul($x, 2, out=$v)
---
$v = $x.new_empty($x.shape)
torch.sum($x[None], 0, out=$v)
---
$v, $w = torch.empty_like($x[0]), torch.empty($x[0].shape, dtype=torch.int64)
torch.max($x, 0, out=($v, $w))
---
$v = torch.empty($m.shape[1], $m.shape[0], dtype=$m.dtype).t()
torch.exp($m, out=$v)
---
$v = torch.zeros(2, *$x.shape, dtype=$x.dtype)
torch.add($x, 1, out=$v[1])
$v[0].copy_($x)
---
with torch.no_grad():
    $v = $x.view(-1)
$w = $x * 2
---
with torch.no_grad():
    $w = $f.mean()
$v = $f - $w
---
$v = torch.autograd.grad(($f * $f).sum(), $f)[0] if $f.requires_grad else $f
---
@torch.no_grad()
def stats(z):
    return z.mean(), z.std()
$v, $w = stats($f)
---
$v = torch.utils.checkpoint.checkpoint(torch.sin, $f, use_reentrant=False)
---
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z
    @staticmethod
    def backward(ctx, grad):
        (z,) = ctx.saved_tensors
        return grad * z * 3
$v = Square.apply($f)
---
$v = torch.utils._pytree.tree_map(lambda z: z + 1, {"a": $x, "b": [$y]})
---
$v = torch.distributions.Normal($f, 1.0).log_prob($f * 2)
---
$v = nn.functional.relu($f) + nn.ReLU()($f)
---
$v = STATE.get("last", $x)
STATE["last"] = $x * 1
---
STATE["log"][:] = [k]
del STATE["log"][0]
---
BOX.items = [$x]
BOX.items[0].add_(1)
---
setattr(BOX, "extra", $x)
delattr(BOX, "extra")
---
items.clear()
items.extend([k, $x])
items.reverse()
---
items[:] = [$x, *items]
"""

_MODULE_TEXT = """
$v = self.mlp($x.float().reshape(-1)[:4].clone()) if $x.numel() > 3 else $x
---
$v = self.mlp(self.linear(torch.ones(3, 4) * k))
---
$v = self.mlp(self.weight[None] * self.seen)
---
$v = self.norm(self.mlp[0](torch.ones(2, 4) * k)[:, :4])
---
$v = self.bn(self.linear(torch.arange(12.0).view(3, 4)))
---
$v = self.conv(torch.linspace(-1, 1, 50).view(2, 1, 5, 5)).relu()
---
$v = self.emb(torch.tensor([0, 1, 1])).sum(0) * self.weight
---
$v = self.drop($f)
---
$v = $x
for layer in self.layers:
    $v = layer($v.float().flatten()[:1].expand(4)) if $v.numel() != 5 else layer($v)
---
$v = [layer(self.weight) for layer in reversed(self.layers)]
---
$v, $w = self.lstm(torch.ones(1, 2, 4))
---
$v = self.attention(torch.ones(2, 3, 4), torch.ones(2, 3, 4), torch.ones(2, 3, 4))[0]
---
$v = self.table["a"](torch.ones(2, 4)) if "a" in self.table else $x
---
$v = {name: tuple(p.shape) for name, p in self.named_parameters()}
---
$v = len(list(self.children())), sum(p.numel() for p in self.parameters())
---
self.mlp[0].weight.data.mul_(0.5)
---
with torch.no_grad():
    self.weight.mul_(0.9)
---
$v = F.linear($f, self.mlp[0].weight[:, :1].expand(-1, $f.shape[-1]))
---
$v = F.linear(torch.ones(2, 4), self.linear.weight.t(), self.weight)
---
self.eval()
$v = self.bn(torch.ones(3, 4) * k)
self.train()
---
$v = (self.linear.weight @ self.linear.weight.t()).trace() + self.linear.bias.sum()
"""


def _blocks(text: str) -> list[str]:
    return [block.strip("\n") for block in text.split("---\n")]


BLOCKS = _blocks(_TEXT)
MODULE_BLOCKS = _blocks(_MODULE_TEXT)
