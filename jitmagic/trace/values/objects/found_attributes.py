"""Attributes read under a name of the call that nothing else has read (`getattr(self, name)`).

Comes in: an object and a text. Goes out: what the text finds in the object's `__dict__`, or in the
tables of a module, as a value read where the name leads: guards about it serve every name that
finds a value alike.
"""

from __future__ import annotations

from ....guards.source import AttributeAt
from ..base import Machine, Value
from ..containers.text_inputs import Text, is_alike
from .class_facts import NOTHING
from .instances import InstanceValue

__all__ = ["find_attribute"]


def find_attribute(machine: Machine, owner: Value, text: Text) -> Value | None:
    """Return the attribute; None: the name has to be known, because the class has one of that
    name or says in Python how attributes are found.
    """
    if not isinstance(owner, InstanceValue) or owner.source is None:
        return None
    name, place = text
    plain = owner.cls.live.__dictoffset__ and owner.cls.peek(machine, name) is NOTHING
    if not plain or not owner.leaves(machine, "__getattribute__"):
        return None
    tables = owner.tables_after(machine, name) or ()
    stores = [table.store for table in tables]
    if not all(store.is_as_found for store in stores):
        return None
    found = next((store.live[name] for store in stores if name in store.live), None)
    if not is_alike(found):
        return None
    for store in stores:
        store.read_anywhere()
    path = AttributeAt(owner.source, place, owner.searched if len(stores) > 1 else ())
    return machine.lazy(found, path, certain=False)
