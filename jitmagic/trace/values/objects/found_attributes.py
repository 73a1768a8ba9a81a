"""Reads attributes under a str input that has no other use (`getattr(self, name)`).

Input: an object and an unread str. Output: the value that the str finds in the object's `__dict__`
or in the tables of a module. Its source looks up the str of each call, so one variant serves all
names that find values which pass its guards.
"""

from __future__ import annotations

from ....guards.source import AttributeAt
from ..base import Machine, Value
from ..containers.text_inputs import Text, is_alike
from .class_facts import NOTHING
from .instances import InstanceValue

__all__ = ["find_attribute"]


def find_attribute(machine: Machine, owner: Value, text: Text) -> Value | None:
    """Return the attribute, or None if a guard must fix the name.

    It must if the class has an attribute of that name, or defines attribute access in Python.
    """
    if not isinstance(owner, InstanceValue) or owner.source is None:
        return None
    name, source = text
    plain = owner.cls.live.__dictoffset__ and owner.cls.peek(machine, name) is NOTHING
    if not plain or not owner.inherits_default(machine, "__getattribute__"):
        return None
    tables = owner.tables_after(machine, name) or ()
    stores = [table.store for table in tables]
    if not all(store.is_read_by_key for store in stores):
        return None
    found = next((store.live[name] for store in stores if name in store.live), None)
    if not is_alike(found):
        return None
    for store in stores:
        store.read_anywhere()
    path = AttributeAt(owner.source, source, owner.searched if len(stores) > 1 else ())
    return machine.lazy(found, path, certain=False)
