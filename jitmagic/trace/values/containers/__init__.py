"""Models containers and iterators.

A container is a Value with the Python type's methods over a store with the contents. The store of a
live container reads as little as possible: a list that only grows is not read at all, a dictionary
lookup guards one key, and `len()` guards the length. At an exit the store describes the effects
that update the live container. A live dictionary has one store per trace, even if it is also the
`__dict__` of an object.

    list_store, sequences    lists, tuples, torch.Size, slices
    deques                   collections.deque, over a ListStore
    namedtuples              named tuples and struct sequences
    table_store, mappings    dict, OrderedDict, defaultdict and their views
    dict_objects             instances of dict subclasses
    read_only                types.MappingProxyType
    set_store, sets          set and frozenset, in CPython's order
    keys                     tokens that stand for keys of dicts and sets
    text_inputs              str inputs that are used for lookups only
    lengths                  length and truth of a live container
    iterators                iterators that the traced code creates
    live_iterators           iterators that existed before, as those of interrupted loops
    generators               generators of the traced code, as suspended frames
    getters                  operator.itemgetter, attrgetter, methodcaller
"""
