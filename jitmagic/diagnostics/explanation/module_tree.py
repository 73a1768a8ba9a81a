"""module_tree: arranges the seconds of a model's modules as a tree.

Input: seconds of each module that computes something. Output: a `Branch` for each module that takes
time and for its parents. Consecutive identical layers are one branch with a count; a container that
holds nothing else is merged with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...lazy_dataclass import dataclass, field
from .cost import ModuleCost, Place

__all__ = ["Branch", "module_tree"]


@dataclass(slots=True)
class Branch:
    """A module, or `count` identical ones. Seconds include those of the branches inside.

    name: `transformer`, `h`; kind: its class, "" for a container that computes nothing
    places: lines that run in it, not in a submodule
    """

    name: str
    kind: str = ""
    count: int = 1
    eager: float = 0.0
    compiled: float = 0.0
    places: dict[Place, None] = field(default_factory=dict)
    inside: list[Branch] = field(default_factory=list)

    @property
    def shape(self) -> tuple[object, ...]:
        """A key that is equal for identical modules."""
        return self.kind, tuple((each.name, each.shape) for each in self.inside)

    def walk(self) -> Iterator[Branch]:
        """Yield the branch and all branches inside it."""
        yield self
        for each in self.inside:
            yield from each.walk()


def module_tree(costs: Sequence[ModuleCost]) -> list[Branch]:
    """Return the top-level branches; an empty list if there is only one module."""
    root = Branch("")
    for cost in costs:
        _place(root, cost)
    _add_up(root)
    _join(root)
    return root.inside if sum(1 for _ in root.walk()) > 2 else []


def _place(root: Branch, cost: ModuleCost) -> None:
    at = root
    for name in cost.module.path.split("."):
        found = next((each for each in at.inside if each.name == name), None)
        if found is None:
            found = Branch(name)
            at.inside.append(found)
        at = found
    at.kind = cost.module.kind
    at.eager += cost.eager
    at.compiled += cost.compiled
    at.places |= cost.places


def _add_up(branch: Branch) -> None:
    for each in branch.inside:
        _add_up(each)
        branch.eager += each.eager
        branch.compiled += each.compiled


def _join(branch: Branch) -> None:
    """Merge runs of identical layers, and a container that holds nothing else with them."""
    for each in branch.inside:
        _join(each)
    joined: list[Branch] = []
    for each in branch.inside:
        last = joined[-1] if joined else None
        numbered = last is not None and each.name.isdigit() and last.name.isdigit()
        if last is not None and numbered and last.shape == each.shape:
            _merge(last, each)
        else:
            joined.append(each)
    branch.inside = joined
    if len(joined) == 1 and not branch.kind and branch.name and joined[0].name.isdigit():
        (only,) = joined
        branch.kind, branch.count, branch.inside = only.kind, only.count, only.inside
        branch.places = only.places


def _merge(into: Branch, other: Branch) -> None:
    into.count += 1
    _sum(into, other)


def _sum(into: Branch, other: Branch) -> None:
    into.eager += other.eager
    into.compiled += other.compiled
    into.places |= other.places
    for mine, its in zip(into.inside, other.inside, strict=True):
        _sum(mine, its)
