"""Models containers and iterators.

A container is a Value that implements the Python type's methods; its contents are in a separate
store. The store of a live container reads, and so guards, as little as possible: appends to a list
read nothing, a dictionary lookup guards one key, and `len()` guards the length. At an exit the
store lists the effects that update the live container. A live dictionary has one store per trace,
even if it is also the `__dict__` of an object.

    list_store, sequences    lists, tuples, torch.Size, slices
    deques                   collections.deque, over a ListStore
    namedtuples              named tuples and struct sequences
    table_store, mappings    dict, OrderedDict, defaultdict and their views
    dict_objects             instances of dict subclasses
    read_only                types.MappingProxyType
    set_store, sets          set and frozenset, in CPython's order
    keys                     tokens, the hashable proxies for keys of dicts and sets
    text_inputs              str inputs that only select an entry, so their value has no guard
    lengths                  length and truth of a live container
    iterators                iterators that the traced code creates
    live_iterators           iterators from before the trace, as in a loop resumed after a break
    generators               generators of the traced code, as suspended frames
    getters                  operator.itemgetter, attrgetter, methodcaller
"""
