"""The Python language around tensors: what changes between calls, and who else holds an object.

Scenarios (see scenarios.py), each run plainly and compiled.
"""

# ruff: noqa: B018
from __future__ import annotations

import builtins
import collections.abc
import types
import warnings
from typing import Any

import torch

import jitmagic
from jitmagic.records import COMPILED

from ..scenarios import Tag, collection, plainly, seen, x3

scenario, test_as_plain = collection()


# -- keys by identity ----------------------------------------------------------------------------


@scenario
def keys_that_become_one_object(tag: Tag) -> list[Any]:
    class Thing:
        pass

    @tag
    def f(a, b):
        d = {a: 1, b: 2}
        d[a] += 5
        return d[a], d[b], len({a, b}), len({(a, 1), (b, 1)})

    thing, tensor, layer = Thing(), x3(), torch.nn.ReLU()
    apart = [(Thing(), thing), (x3(), tensor), (torch.nn.ReLU(), layer)]
    one = [(thing, thing), (tensor, tensor), (layer, layer)]
    return [seen(f, *pair) for pair in (*apart, *one, *apart)]


@scenario
def very_many_keys(tag: Tag) -> list[Any]:
    @tag
    def f(tensors):
        return len(set(tensors)), tensors[0] + 1

    many = [x3() for _ in range(70)]
    return [seen(f, many), seen(f, many[:3]), seen(f, many[:1] * 3)]


# -- a dictionary that holds attributes or globals -----------------------------------------------


@scenario
def instance_dictionaries(tag: Tag) -> list[Any]:
    class Bunch:
        def __init__(self, **given):
            self.__dict__.update(given)

    @tag
    def store(o, t):
        before = o.a
        o.__dict__["a"] = before + 1
        o.b = o.a * 2
        vars(o)["b"] += 1
        return o.a, o.b, vars(o)["b"], t + o.b

    @tag
    def made_inside(t):
        o = Bunch(a=1, t=t)
        o.__dict__["a"] = 5
        return o.a, o.t + o.a

    o = Bunch(a=1)
    return [
        *(seen(store, o, x3()) for _ in range(3)),
        o.__dict__,
        *(seen(made_inside, x3()) for _ in range(2)),
    ]


@scenario
def descriptors_hidden_by_the_instance(tag: Tag) -> list[Any]:
    class Says:
        def __get__(self, instance, owner=None):
            return "descriptor", instance is None, owner.__name__

    class Thing:
        says = Says()

    class Further(Thing):
        pass

    @tag
    def f():
        thing = Thing()
        first = thing.says
        thing.__dict__["says"] = 5
        return first, thing.says, Thing.says, Further.says, Further().says

    results = [seen(f), seen(f)]
    Says.__get__ = lambda self, instance, owner=None: "another"
    return [*results, seen(f)]


@scenario
def module_tables_and_namespaces(tag: Tag) -> list[Any]:
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.ones(3))

    space = types.ModuleType("space")
    space.a = 1

    @tag
    def buffers(layer, t):
        before = layer.shift + 0
        layer._buffers["shift"] = t
        return before, layer.shift + 1

    @tag
    def names(t):
        vars(space)["a"] = 7
        return t * space.a

    layer = Layer()
    results = [seen(buffers, layer, x3() + k) for k in range(3)]
    results.append(seen(names, x3()))
    space.a = 2
    return [*results, seen(names, x3())]


WRITTEN = 1


@scenario
def globals_as_a_dictionary(tag: Tag) -> list[Any]:
    global WRITTEN

    @tag
    def f(t):
        globals()["WRITTEN"] = 5
        return WRITTEN + t

    results = []
    for WRITTEN in (1, 2):  # noqa: B007 - a global
        results.append(seen(f, x3()))
    WRITTEN = 1
    return results


# -- what was not there --------------------------------------------------------------------------


@scenario
def class_attributes_appear(tag: Tag) -> list[Any]:
    class Base:
        pass

    class Thing(Base):
        pass

    @tag
    def asked(o, t):
        return hasattr(o, "extra"), getattr(o, "extra", None), hasattr(Thing, "extra"), t + 1

    @tag
    def operators(o, other, t):
        return (t + 1 if o else t - 1), o == other, o in {other: 1}, type(o).__name__

    def look() -> list[Any]:
        return [seen(asked, thing, x3()), seen(operators, thing, other, x3())]

    thing, other = Thing(), Thing()
    results = look()
    for name, value in (
        ("extra", 5),
        ("__getattr__", lambda self, name: name),
        ("__bool__", lambda self: False),
        ("__len__", lambda self: 0),
        ("__eq__", lambda self, other: True),
        ("__hash__", lambda self: 1),
    ):
        setattr(Base, name, value)
        results += look()
        delattr(Base, name)
        results += look()
    Thing.__name__ = "Renamed"
    return [*results, *look()]


@scenario
def calls_of_instances_appear(tag: Tag) -> list[Any]:
    class Base:
        def __call__(self, t):
            return t + 1

    class Thing(Base):
        pass

    @tag
    def f(o, t):
        return o(t)

    thing = Thing()
    results = [seen(f, thing, x3())]
    Thing.__call__ = lambda self, t: t * 100
    results.append(seen(f, thing, x3()))
    del Thing.__call__, Base.__call__
    return [*results, seen(f, thing, x3())]


@scenario
def builtins_appear(tag: Tag) -> list[Any]:
    @tag
    def f(t):
        try:
            return t * A_NAME_NOBODY_HAS  # noqa: F821
        except NameError:
            return t

    results = [seen(f, x3())]
    builtins.A_NAME_NOBODY_HAS = 7
    results.append(seen(f, x3()))
    del builtins.A_NAME_NOBODY_HAS
    return [*results, seen(f, x3())]


# -- deleting what may be gone -------------------------------------------------------------------


@scenario
def deleting_twice(tag: Tag) -> list[Any]:
    class Thing:
        pass

    box = 1

    @tag
    def attribute(o):
        del o.x
        return 1

    @tag
    def variable(t):
        global TO_DELETE
        del TO_DELETE
        return t + 1

    @tag
    def closure(t):
        nonlocal box
        del box
        return t + 1

    thing, results = Thing(), []
    for _ in range(2):
        thing.x = 1
        globals()["TO_DELETE"] = box = 1
        for _ in range(2):
            results += [seen(attribute, thing), seen(variable, x3())]
            results.append(seen(closure, x3()))
    return results


# -- loops over what changes ---------------------------------------------------------------------


@scenario
def containers_that_grow_in_their_loop(tag: Tag) -> list[Any]:
    @tag
    def grows(d):
        for key in d:
            d[key + "x"] = 1
        return d

    @tag
    def shrinks(d):
        for key in d.keys():
            del d[key]
        return d

    @tag
    def set_grows(items):
        numbers = set(items)
        for number in numbers:
            numbers.add(number + 10)
        return len(numbers)

    @tag
    def overwrites(d):
        for key in d:
            d[key] = 5
        return d

    results = []
    for keys in ("", "a", "ab"):
        for loop in (grows, shrinks, overwrites):
            results.append(seen(loop, dict.fromkeys(keys, 0)))
        results.append(seen(set_grows, range(len(keys))))
    return results


@scenario
def patterns_for_more_than_lists_and_dicts(tag: Tag) -> list[Any]:
    class Listed(collections.abc.Sequence):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return (10, 20)[index]

    @tag
    def f(o, t):
        match o:
            case [a, b]:
                return "two", a, b, t + 1
            case {"k": value}:
                return "mapping", value, t + 2
        return "other", t

    subjects = [collections.deque([1, 2]), Listed(), types.MappingProxyType({"k": 3}), "ab"]
    return [seen(f, one, x3()) for one in subjects * 2]


# -- a function's own frame ----------------------------------------------------------------------


@scenario
def own_variables(tag: Tag) -> list[Any]:
    @tag
    def evaluated(t, k):
        a = 1
        y = t * k
        return eval("a + k"), y

    @tag
    def all_of_them(t, k):
        unused = "dead"
        y = t * k
        print(end="")
        return sorted(locals()), sorted(vars()), dir(), "{k} {unused}".format(**locals()), y

    return [seen(evaluated, x3(), 2), seen(all_of_them, x3(), 2), seen(all_of_them, x3(), 3)]


def test_methods_called_eval_are_no_frame_readers() -> None:
    @jitmagic.jit
    def f(model, t):
        return model.eval()(t)

    f(torch.nn.ReLU(), x3())
    outcomes = [record.outcome for record in jitmagic.api.handle_of(f).journal]
    assert set(outcomes) == {COMPILED}


def warner(t):
    warnings.warn("old", DeprecationWarning, stacklevel=2)
    return t


@scenario
def warnings_name_the_caller(tag: Tag) -> list[Any]:
    @tag
    def f(t):
        t = t + 1
        return warner(t) * 2

    results = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append(seen(f, x3()))
        results += [(one.filename, one.lineno) for one in caught if one.category is not None]
    return results


@scenario
def annotated_functions_made_inside(tag: Tag) -> list[Any]:
    @tag
    def f(t, k):
        def inner(a: int = 3, *, b: str = "q", **rest: Any) -> torch.Tensor:
            """What inner says."""
            return t * k + a

        print(end="")
        return inner

    results = []
    for k in (1, 2, 1):
        made = f(x3(), k)
        results += [plainly(made()), made.__annotations__, made.__defaults__, made.__kwdefaults__]
        results += [made.__doc__, made.__name__, made.__module__]
    return results


# -- classes -------------------------------------------------------------------------------------


@scenario
def attributes_of_classes(tag: Tag) -> list[Any]:
    class Meta(type):
        @property
        def both(cls):
            return "of the metaclass"

    class Thing(metaclass=Meta):
        both = "of the class"
        x: int = 3

    class Further(Thing):
        pass

    @tag
    def f(t):
        return Thing.__dict__["x"], Thing.both, Further.__annotations__, Thing.x + t

    return [seen(f, x3()), seen(f, x3())]


@scenario
def subclasses_of_builtins(tag: Tag) -> list[Any]:
    class Twice(list):
        def append(self, value):
            super().append(value * 2)

    @tag
    def f(items, t):
        items.append(3)
        return list(items), t * items[-1]

    return [seen(f, Twice([1]), x3()), seen(f, Twice([1]), x3())]


def test_a_list_of_ones_own_compiles_around_its_methods() -> None:
    class Twice(list):
        def append(self, value):
            super().append(value * 2)

    @jitmagic.jit
    def f(items, t):
        items.append(3)
        return t * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plainly(f(Twice([1]), x3())) == [2.0, 4.0, 6.0]
