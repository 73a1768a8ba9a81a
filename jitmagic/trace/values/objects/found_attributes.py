"""Traces `getattr(self, name)` for a str input without guarding the str's value.

Input: an object and an unread str (containers/text_inputs.py). Output: the attribute found in the
object's `__dict__` or in the tables of an nn.Module. Its source looks up the str at run time, so
one variant serves every name whose attribute passes the guards.
"""

from __future__ import annotations

from ....guards.source import AttributeAt
from ..base import Machine, Value
from ..containers.text_inputs import Text, is_alike
from .class_facts import NOTHING
from .instances import InstanceValue

__all__ = ["find_attribute"]


def find_attribute(machine: Machine, owner: Value, text: Text) -> Value | None:
    """Return the attribute, or None if the caller must guard the value of the name.

    That is so if the class has an attribute of that name, or overrides attribute access.
    """
    if not isinstance(owner, InstanceValue) or owner.source is None:
        return None
    name, source = text
    # A guard on a class attribute names the attribute, so it would hold for this one name only.
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
    # The next call may read any other name. So the aliasing check in effects.py must compare these
    # tables with each dictionary that the trace writes, whatever key it writes.
    for store in stores:
        store.read_anywhere()
    path = AttributeAt(owner.source, source, owner.searched if len(stores) > 1 else ())
    return machine.lazy(found, path, certain=False)
