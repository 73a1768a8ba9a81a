"""TableStore models the contents of a dictionary and the changes that the traced code made.

Input: the pairs of a new dictionary, or a live dictionary. Output: values by key, all pairs in
order, and the effects that update the live dictionary at an exit, one for each changed key. A
lookup in a live dictionary guards only its key; a read of all pairs guards all keys.

The model is a Python dict whose keys are tokens (keys.py), so order and key equality are Python's.
A live dictionary has one store per trace, even if the program reaches it both as an object and as
the `__dict__` of one or several objects (`Machine.owners` has one of them).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Self

from ....guards.guard import ANY_KEY, DictKeysAre, Guard, HasKeyAt, KeyAbsent, LengthIs
from ....guards.live_objects import entries_of
from ....guards.source import DictKeyAt, DictValueAt, InstanceDict, Item, ItemAt, Source
from ...breaks import GraphBreak, UnknownObject
from ...result import DelItem, Effect, Perform, Recipe, ReplaceDict, SetItem
from ..base import Builder, Machine, Value
from .keys import hashes_unchanged, is_plain_key
from .lengths import is_filled, live_length
from .text_inputs import Text, is_alike

__all__ = ["Pair", "TableStore"]

Pair = tuple[Value, Value]
Change = tuple[str, object, tuple[Value, ...]]  # a method, the token of its key, its arguments

_NOTHING = object()
_ONE_KEY = ("__setitem__", "__delitem__")  # changes that affect one key alone
_CANCELLED: Change = ("", None, ())  # an insertion that a deletion has undone


class TableStore:
    """The contents of one dictionary."""

    __slots__ = ("_at", "_changes", "_known", "_pairs", "_simple", "_whole", "absent", "entry",
                 "kind", "live", "machine", "source")  # fmt: skip

    def __init__(self, pairs: dict[object, Pair] | None = None, kind: type = dict) -> None:
        self.kind = kind
        self.live: Any = None
        self.source: Source | None = None
        self.machine: Machine | None = None
        self.entry: Callable[[Any, Any], Source] = Item
        self.absent: Callable[[Any, Any], Guard] = KeyAbsent
        self._pairs: dict[object, Pair] | None = {} if pairs is None else pairs
        self._known: dict[object, Value | None] = {}  # original live entries read; None: absent
        self._changes: list[Change] = []
        self._at: dict[object, int] = {}  # index in `_changes` of the last write of a key
        self._simple: bool | None = False  # guards can look up all keys; None: not yet computed
        self._whole = False  # the trace depends on all keys or on their number

    @classmethod
    def of_live(
        cls,
        machine: Machine,
        live: dict[Any, Any],
        source: Source,
        entry: Callable[[Any, Any], Source] = Item,
        absent: Callable[[Any, Any], Guard] = KeyAbsent,
    ) -> Self:
        """Create the store of a live dictionary whose type is guarded.

        For a key that guards can look up, `entry(source, key)` is the source of its value and
        `absent(source, key)` the guard that it is absent. A value under another key has a source by
        its position.
        """
        store = cls({}, type(live))
        store.machine, store.live, store.source = machine, live, source
        store.entry, store.absent = entry, absent
        store._pairs, store._simple = None, None
        return store

    # -- reading ---------------------------------------------------------------------------------

    @property
    def pairs(self) -> dict[object, Pair]:
        """All keys and values in order; reading it guards the keys of a live dictionary."""
        if self._pairs is None:
            self._pairs = self._live_pairs()
            for name, token, args in self._changes:
                _apply(self._pairs, name, token, args)
        return self._pairs

    def get(self, token: object) -> Value | None:
        """Return the value under a key, or None."""
        if self._pairs is not None or not self._can_look_up(token):
            pair = self.pairs.get(token)
            return None if pair is None else pair[1]
        return self.stored(token) if token in self._at else self._original(token)

    def stored(self, token: object) -> Value | None:
        """Return the value that the traced code has stored under a key, or None."""
        name, _, args = self._changes[self._at[token]] if token in self._at else _CANCELLED
        return args[1] if name == "__setitem__" else None

    def can_find(self, text: Text) -> bool:
        """Return whether a guard can look up an unread str: in a live dict without changes."""
        is_plain = self.is_read_by_key and type(self.live) is dict
        if not is_plain or self.source is None or isinstance(self.source, InstanceDict):
            return False
        return self._can_look_up(text[0])

    def has_at(self, text: Text) -> bool:
        """Return whether the str is a key, under a guard that looks up the str of each call."""
        found = text[0] in self.live
        assert self.machine is not None
        assert self.source is not None
        self.read_anywhere()
        self.machine.guard(HasKeyAt(self.source, text[1], found))
        return found

    def find_at(self, text: Text) -> Value | None:
        """Return the value under an unread str, or None if the str's value must be guarded.

        At run time, guards check the value that the str of that call selects.
        """
        # With a guard on each key, 20 keys gave 9 variants and then eager; now they share one.
        value = dict.get(self.live, text[0])
        if not is_alike(value):
            return None
        assert self.machine is not None
        assert self.source is not None
        self.read_anywhere()
        return self.machine.lazy(value, ItemAt(self.source, text[1]), certain=False)

    def read_anywhere(self) -> None:
        """Note that a call of this variant may read any key."""
        self._whole = True

    def length(self) -> int:
        """Return the number of keys and guard that number, but no key."""
        self._whole = True
        if self._pairs is not None or self._changes:
            return len(self.pairs)
        assert self.machine is not None
        assert self.source is not None
        self.machine.guard(LengthIs(self.source, len(self.live)))
        return len(self.live)

    def length_value(self, machine: Machine) -> Value:
        """Return the number of keys as a Value that may be symbolic."""
        self._whole = True
        growth = None if self._pairs is not None else self._growth()
        if growth is None or self.source is None:
            return machine.constant(self.length())
        return live_length(machine, self.live, self.source, growth)

    def is_filled(self, machine: Machine) -> bool:
        """Return whether there are any keys, and guard only that."""
        self._whole = True
        if self._pairs is not None or self._changes or self.source is None:
            return self.length() > 0
        return is_filled(machine, self.live, self.source)

    def _growth(self) -> int | None:
        """Return the number of keys added since the start; None if all keys must be read for it."""
        changes = [(name, token) for name, token, _ in self._changes if name]
        if any(name not in _ONE_KEY or not self._can_look_up(token) for name, token in changes):
            return None
        tokens = dict.fromkeys(token for _, token in changes)
        present = [self.get(token) is not None for token in tokens]
        return sum(present) - sum(self._original(token) is not None for token in tokens)

    def _can_look_up(self, token: object) -> bool:
        if self._simple is None:
            self._simple = all(is_plain_key(key) for key, _ in entries_of(self.live))
        return self._simple and not isinstance(token, Value) and is_plain_key(token)

    def _original(self, token: object) -> Value | None:
        """Return the value under a key at the start of the frame, and guard only that key."""
        if token not in self._known:
            assert self.machine is not None
            assert self.source is not None
            # An overriding `get` or `__getitem__` of a subclass must not run.
            value = dict.get(self.live, token, _NOTHING)
            if value is _NOTHING:
                self.machine.guard(self.absent(self.source, token))
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
        if not hashes_unchanged(self.live, [key for key, _ in entries], list(pairs)):
            raise GraphBreak(UnknownObject.of(what="a hash that has changed", type="a key"))
        return pairs

    # -- changing --------------------------------------------------------------------------------

    def put(self, token: object, key: Value, value: Value) -> None:
        """Do `self[key] = value`; as in a dict, an equal key already there remains."""
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
        """Do `del self[key]`; return False if there is no such key."""
        if self._pairs is None and self._can_look_up(token):
            found = self.get(token) is not None
        else:
            found = self.pairs.pop(token, None) is not None
        if found and self.source is not None:
            self._record_deletion(token, key)
        return found

    def _record_deletion(self, token: object, key: Value) -> None:
        at = self._at.get(token)
        if at is not None and self._changes[at][0] == "__setitem__":
            existed = self._existed(token, at)
            self._changes[at] = _CANCELLED
            # If the key existed, only the write is dropped, and the deletion remains an effect.
            if not existed:
                return
        self._note(token, "__delitem__", key)

    def _existed(self, token: object, at: int) -> bool:
        """Return whether the key existed before change number `at` wrote it."""
        for name, other, _ in reversed(self._changes[:at]):
            if name == "clear" or (other == token and name == "__delitem__"):
                return False
        if self._can_look_up(token):
            return self._original(token) is not None
        return token in self._live_pairs()

    def clear(self) -> None:
        """Remove all keys, without reading them."""
        # clear() overrides all earlier changes, so that the list of changes begins with it.
        self._pairs, self._at, self._whole = {}, {}, True
        self._changes = [("clear", None, ())]

    def move(self, token: object, key: Value, *, last: bool) -> None:
        """Do `OrderedDict.move_to_end` of an existing key."""
        pair = self.pairs.pop(token)
        rest = dict(self.pairs)
        self._pairs = {**rest, token: pair} if last else {token: pair, **rest}
        assert self._pairs is not None
        name = "move_to_end" if last else "move_to_start"
        self._changes.append((name, token, (key,)))
        # A later deletion must not cancel an insertion before the move, whose effect needs the key.
        self._at.pop(token, None)

    def _note(self, token: object, name: str, *args: Value) -> None:
        self._at[token] = len(self._changes)
        self._changes.append((name, token, args))

    # -- exits -----------------------------------------------------------------------------------

    def effects(self, builder: Builder, owner: Value) -> tuple[Effect, ...]:
        """Return the effects that update the live dictionary to these contents."""
        target = builder(owner)
        if self.source is None or (self._pairs is not None and self._is_long()):
            return (ReplaceDict(target, *self.recipes(builder)),)
        changes = [change for change in self._changes if change is not _CANCELLED]
        return tuple(self._effect(builder, target, *change) for change in changes)

    def _is_long(self) -> bool:
        return len(self._changes) > len(self.pairs) + 1

    def _effect(
        self, builder: Builder, target: Recipe, name: str, token: object, args: tuple[Value, ...]
    ) -> Effect:
        owner = None if self.machine is None else self.machine.owners.get(id(self))
        if owner is not None and type(token) is str and name in _ONE_KEY:
            value = args[1] if name == "__setitem__" else None
            stored: Effect | None = owner.attribute_effect(builder, token, value)
            if stored is not None:
                return stored
        recipes = tuple(builder(arg) for arg in args)
        if self.kind is dict and name == "__setitem__":
            return SetItem(target, *recipes)
        if self.kind is dict and name == "__delitem__":
            return DelItem(target, *recipes)
        base: Any = OrderedDict if issubclass(self.kind, OrderedDict) else dict
        if name == "move_to_start":
            named = (("last", builder.constant(False)),)
            return Perform(builder.constant(base.move_to_end), (target, *recipes), named)
        return Perform(builder.constant(getattr(base, name)), (target, *recipes))

    def recipes(self, builder: Builder) -> tuple[tuple[Recipe, ...], tuple[Recipe, ...]]:
        """Return the recipes of all keys and of all values."""
        pairs = list(self.pairs.values())
        return tuple(builder(key) for key, _ in pairs), tuple(builder(value) for _, value in pairs)

    def parts(self) -> list[Value]:
        """Return the values that the trace has read from the dictionary or added to it."""
        if self._pairs is not None:
            return [part for pair in self._pairs.values() for part in pair]
        return [part for _, _, args in self._changes for part in args]

    # -- for aliasing checks of two stores that may model one dictionary (effects.py) ------------

    @property
    def is_read_by_key(self) -> bool:
        """Return whether a live dictionary was read key by key and not changed."""
        return self._pairs is None and not self._changes

    def known(self) -> dict[object, Value | None]:
        """Return the values read or written, by token; None for an absent key."""
        if self._pairs is not None:
            return {token: value for token, (_, value) in self._pairs.items()}
        return {token: self.get(token) for token in (*self._known, *self.tokens(written=True))}

    def tokens(self, *, written: bool = False) -> set[object]:
        """Return the keys that were read or written, or only those written."""
        changed = {token for name, token, _ in self._changes if name}
        return changed if written else changed.union(self._known)

    @property
    def depends_on_all_keys(self) -> bool:
        """Return whether the trace depends on all keys or on their number, or replaced them."""
        return self._whole


def _apply(pairs: dict[object, Pair], name: str, token: object, args: tuple[Value, ...]) -> None:
    if name == "__setitem__":
        key, value = args
        old = pairs.get(token)
        pairs[token] = (key if old is None else old[0], value)
    elif name == "__delitem__":
        del pairs[token]
