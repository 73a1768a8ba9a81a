"""Holds the Values: the tracer's models of Python and torch objects, one small class for each kind.

`base.py` defines the protocol, `methods.py` bound methods. `trace/wrap.py` finds the class for a
live object by its type, `trace/fresh_values.py` the one for an object that the trace creates. A
Value of a live object has a source, and reading a fact about it installs a guard. At an exit (a
return or a graph break), a Value without a source returns the recipe that builds the object.

In the order of their imports (an object has a dictionary, a dictionary has objects):

    objects       constants, functions, classes, instances, exceptions, namespaces
    containers    lists, dictionaries, sets, iterators, over stores of contents
    contexts      context managers, locks
    numbers       symbolic numbers and numbers read from tensors
    tensors       tensors, `__torch_function__`, tensor hooks
    numpy         arrays, numpy functions, random generators
    caches        functools.lru_cache
    modules       torch.nn.Module and hooks
    autograd      backward passes, custom autograd functions and function transforms
"""
