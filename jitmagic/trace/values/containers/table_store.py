"""TableStore: what a dictionary holds, where that came from, and what the traced code did to it.

Comes in: pairs of a dictionary made here, or a live dictionary. Goes out: what is under a key (of a
live dictionary guarded key by key, as long as nobody asks for all of them), all pairs in order, and
the effects that bring the live dictionary to what the model holds: one for each key that changed.
Keys are tokens (keys.py), so order and key equality are Python's. A live dictionary has one store
in a trace, whether the program reaches it as an object or as the attributes of one or several
objects (`Machine.owners` has one of them).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ....guards.guard import ANY_KEY, DictKeysAre, HasKeyAt, KeyAbsent, LengthIs
from ....guards.read import entries_of
from ....guards.source import DictKeyAt, DictValueAt, InstanceDict, Item, ItemAt, Source
from ...breaks import GraphBreak, UnknownObject
from ...result import DelItem, Effect, Perform, Recipe, ReplaceDict, SetItem
from ..base import Builder, Machine, Value
from .keys import are_found, is_plain_key
from .lengths import is_filled, live_length
from .text_inputs import Text, is_alike

__all__ = ["Pair", "TableStore"]

Pair = tuple[Value, Value]
Change = tuple[str, object, tuple[Value, ...]]  # a method, the token of its key, its arguments

_NOTHING = object()
_ONE_KEY = ("__setitem__", "__delitem__")  # changes that are about no other key
_WITHDRAWN: Change = ("", None, ())  # a key that came and went


class TableStore:
    """The contents of one dictionary."""

    __slots__ = ("_at", "_changes", "_known", "_pairs", "_simple", "_whole", "entry", "kind",
                 "live", "machine", "source")  # fmt: skip

    def __init__(self, pairs: dict[object, Pair] | None = None, kind: type = dict) -> None:
        self.kind = kind
        self.live: Any = None
        self.source: Source | None = None
        self.machine: Machine | None = None
        self.entry: Callable[[Source, object], Source] = Item
        self._pairs: dict[object, Pair] | None = {} if pairs is None else pairs
        self._known: dict[object, Value | None] = {}  # of a live one, as it was; None: no such key
        self._changes: list[Change] = []
        self._at: dict[object, int] = {}  # where in the changes a key was written last
        self._simple: bool | None = False
        self._whole = False  # all keys, any one, or how many there are, were read or replaced

    @classmethod
    def of_live(
        cls,
        machine: Machine,
        live: dict[Any, Any],
        source: Source,
        entry: Callable[[Source, object], Source] = Item,
    ) -> TableStore:
        """The store of a dictionary whose type is guarded; `entry` leads to the value under a key
        that the guards may look up; beside any other it is found by place.
        """
        made = cls({}, type(live))
        made.machine, made.live, made.source, made.entry = machine, live, source, entry
        made._pairs, made._simple = None, None
        return made

    # -- reading ---------------------------------------------------------------------------------

    @property
    def pairs(self) -> dict[object, Pair]:
        """All keys and values, in order; the keys of a live dictionary get guarded."""
        if self._pairs is None:
            self._pairs = self._live_pairs()
            for name, token, args in self._changes:
                _apply(self._pairs, name, token, args)
        return self._pairs

    def get(self, token: object) -> Value | None:
        """The value under a key, if there is one."""
        if self._pairs is not None or not self._can_ask(token):
            pair = self.pairs.get(token)
            return None if pair is None else pair[1]
        if (at := self._at.get(token)) is None:
            return self._original(token)
        name, _, args = self._changes[at]
        return args[1] if name == "__setitem__" else None

    def can_find(self, text: Text) -> bool:
        """Return whether a text of the call finds what a live dictionary had under it at first."""
        is_plain = self.is_as_found and type(self.live) is dict
        if not is_plain or self.source is None or isinstance(self.source, InstanceDict):
            return False
        return self._can_ask(text[0])

    def has_at(self, text: Text) -> bool:
        """Return whether there is such a key; guarded of the text of each call."""
        there = text[0] in self.live
        assert self.machine is not None
        assert self.source is not None
        self.read_anywhere()
        self.machine.guard(HasKeyAt(self.source, text[1], there))
        return there

    def find_at(self, text: Text) -> Value | None:
        """The value under a text of the call: guards are about the value, whichever text finds it.
        None: the text itself has to be guarded.
        """
        value = dict.get(self.live, text[0])
        if not is_alike(value):
            return None
        assert self.machine is not None
        assert self.source is not None
        self.read_anywhere()
        return self.machine.lazy(value, ItemAt(self.source, text[1]), certain=False)

    def read_anywhere(self) -> None:
        """Note that another call may read any key."""
        self._whole = True

    def length(self) -> int:
        """How many keys there are; only their number is guarded."""
        self._whole = True
        if self._pairs is not None or self._changes:
            return len(self.pairs)
        assert self.machine is not None
        assert self.source is not None
        self.machine.guard(LengthIs(self.source, len(self.live)))
        return len(self.live)

    def counted(self, machine: Machine) -> Value:
        """The same as a number that may vary."""
        self._whole = True
        grown = None if self._pairs is not None else self._grown()
        if grown is None or self.source is None:
            return machine.constant(self.length())
        return live_length(machine, self.live, self.source, grown)

    def is_filled(self, machine: Machine) -> bool:
        """Whether there are any keys."""
        self._whole = True
        if self._pairs is not None or self._changes or self.source is None:
            return self.length() > 0
        return is_filled(machine, self.live, self.source)

    def _grown(self) -> int | None:
        """How many keys more there are than at the start; None: it takes all keys to tell."""
        told = [(name, token) for name, token, _ in self._changes if name]
        if any(name not in _ONE_KEY or not self._can_ask(token) for name, token in told):
            return None
        tokens = dict.fromkeys(token for _, token in told)
        there = [self.get(token) is not None for token in tokens]
        return sum(there) - sum(self._original(token) is not None for token in tokens)

    def _can_ask(self, token: object) -> bool:
        if self._simple is None:
            self._simple = all(is_plain_key(key) for key, _ in entries_of(self.live))
        return self._simple and not isinstance(token, Value) and is_plain_key(token)

    def _original(self, token: object) -> Value | None:
        """What a live dictionary had under a key; the guard is about this key alone."""
        if token not in self._known:
            assert self.machine is not None
            assert self.source is not None
            value = dict.get(self.live, token, _NOTHING)
            if value is _NOTHING:
                self.machine.guard(KeyAbsent(self.source, token))
                self._known[token] = None
            else:
                path = self.entry(self.source, token)
                self._known[token] = self.machine.lazy(value, path, certain=False)
        return self._known[token]

    def _live_pairs(self) -> dict[object, Pair]:
        machine, source = self.machine, self.source
        assert machine is not None
        assert source is not None
        self._whole = True
        entries = entries_of(self.live)
        keys = [key if is_plain_key(key) else ANY_KEY for key, _ in entries]
        machine.guard(DictKeysAre(source, tuple(keys)))
        pairs: dict[object, Pair] = {}
        for index, (key, value) in enumerate(entries):
            if keys[index] is ANY_KEY:
                model = machine.wrap(key, DictKeyAt(source, index))
                path: Source = DictValueAt(source, index)
            else:
                model, path = machine.constant(key), self.entry(source, key)
            token = model.hash_key(machine)
            if token in pairs:
                raise GraphBreak(UnknownObject.of(what="equal keys", type=type(key).__name__))
            known = self._known.get(token)
            pairs[token] = model, known or machine.lazy(value, path)
        if not are_found(self.live, [key for key, _ in entries], list(pairs)):
            raise GraphBreak(UnknownObject.of(what="a hash that has changed", type="a key"))
        return pairs

    # -- changing --------------------------------------------------------------------------------

    def put(self, token: object, key: Value, value: Value) -> None:
        """`self[key] = value`; a key that is there already stays."""
        if self._pairs is not None:
            _apply(self._pairs, "__setitem__", token, (key, value))
        if self.source is None:
            return
        at = self._at.get(token)
        if at is not None and self._changes[at][0] == "__setitem__":
            self._changes[at] = "__setitem__", token, (key, value)
        else:
            self._note(token, "__setitem__", key, value)

    def erase(self, token: object, key: Value) -> bool:
        """`del self[key]`; False: there is no such key."""
        if self._pairs is None and self._can_ask(token):
            found = self.get(token) is not None
        else:
            found = self.pairs.pop(token, None) is not None
        if found and self.source is not None:
            self._tell_erased(token, key)
        return found

    def _tell_erased(self, token: object, key: Value) -> None:
        at = self._at.get(token)
        if at is not None and self._changes[at][0] == "__setitem__":
            there = self._was_there(token, at)
            self._changes[at] = _WITHDRAWN
            if not there:
                return
        self._note(token, "__delitem__", key)

    def _was_there(self, token: object, at: int) -> bool:
        """Whether the key was there before it was written in the change `at`."""
        for name, other, _ in reversed(self._changes[:at]):
            if name == "clear" or (other == token and name == "__delitem__"):
                return False
        if self._can_ask(token):
            return self._original(token) is not None
        return token in self._live_pairs()

    def clear(self) -> None:
        """What was there need not be known."""
        self._pairs, self._at, self._whole = {}, {}, True
        self._changes = [("clear", None, ())]

    def move(self, token: object, key: Value, *, last: bool) -> None:
        """`OrderedDict.move_to_end` of a key that is there."""
        pair = self.pairs.pop(token)
        rest = dict(self.pairs)
        self._pairs = {**rest, token: pair} if last else {token: pair, **rest}
        assert self._pairs is not None
        name = "move_to_end" if last else "move_to_start"
        self._changes.append((name, token, (key,)))
        self._at.pop(token, None)

    def _note(self, token: object, name: str, *args: Value) -> None:
        self._at[token] = len(self._changes)
        self._changes.append((name, token, args))

    # -- exits -----------------------------------------------------------------------------------

    def tell(self, builder: Builder, owner: Value) -> tuple[Effect, ...]:
        """The effects that bring the live dictionary to these contents."""
        me = builder(owner)
        if self.source is None or (self._pairs is not None and self._is_long()):
            return (ReplaceDict(me, *self.recipes(builder)),)
        written = [change for change in self._changes if change is not _WITHDRAWN]
        return tuple(self._effect(builder, me, *change) for change in written)

    def _is_long(self) -> bool:
        return len(self._changes) > len(self.pairs) + 1

    def _effect(
        self, builder: Builder, me: Recipe, name: str, token: object, args: tuple[Value, ...]
    ) -> Effect:
        owner = None if self.machine is None else self.machine.owners.get(id(self))
        if owner is not None and type(token) is str and name in _ONE_KEY:
            value = args[1] if name == "__setitem__" else None
            stored: Effect | None = owner.stores(builder, token, value)
            if stored is not None:
                return stored
        told = tuple(builder(arg) for arg in args)
        if self.kind is dict and name == "__setitem__":
            return SetItem(me, *told)
        if self.kind is dict and name == "__delitem__":
            return DelItem(me, *told)
        base: Any = OrderedDict if issubclass(self.kind, OrderedDict) else dict
        if name == "move_to_start":
            named = (("last", builder.constant(False)),)
            return Perform(builder.constant(base.move_to_end), (me, *told), named)
        return Perform(builder.constant(getattr(base, name)), (me, *told))

    def recipes(self, builder: Builder) -> tuple[tuple[Recipe, ...], tuple[Recipe, ...]]:
        """Of all keys, and of all values."""
        pairs = list(self.pairs.values())
        return tuple(builder(key) for key, _ in pairs), tuple(builder(value) for _, value in pairs)

    def parts(self) -> list[Value]:
        """The values it holds, as far as they are known."""
        if self._pairs is not None:
            return [part for pair in self._pairs.values() for part in pair]
        return [part for _, _, args in self._changes for part in args]

    # -- what it has in common with another ------------------------------------------------------

    @property
    def is_as_found(self) -> bool:
        """Return whether a live dictionary was read key by key and not changed."""
        return self._pairs is None and not self._changes

    def known(self) -> dict[object, Value | None]:
        """Return what was read or written, by token; None: no such key."""
        if self._pairs is not None:
            return {token: value for token, (_, value) in self._pairs.items()}
        return {token: self.get(token) for token in (*self._known, *self.tokens(written=True))}

    def tokens(self, *, written: bool = False) -> set[object]:
        """The keys that were read or written; or written alone."""
        changed = {token for name, token, _ in self._changes if name}
        return changed if written else changed.union(self._known)

    @property
    def is_whole(self) -> bool:
        """Return whether all keys, or how many there are, were read or replaced."""
        return self._whole


def _apply(pairs: dict[object, Pair], name: str, token: object, args: tuple[Value, ...]) -> None:
    if name == "__setitem__":
        key, value = args
        old = pairs.get(token)
        pairs[token] = (key if old is None else old[0], value)
    elif name == "__delitem__":
        del pairs[token]
