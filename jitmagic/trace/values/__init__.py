"""Holds the Values: the tracer's models of Python and torch objects, one small class for each kind.

`base.py` defines the protocol, `methods.py` bound methods. `trace/wrap.py` finds the class for a
live object by its type. A Value of a live object has a source, and reading a fact about it installs
a guard. At an exit (a return or a graph break), a Value without a source returns the recipe that
builds the object.

    objects       constants, functions, classes, instances, exceptions, namespaces
    containers    lists, dictionaries, sets, iterators, over stores of contents
    modules       torch.nn.Module and hooks
    tensors       tensors, `__torch_function__`, tensor hooks
    numbers       symbolic numbers and numbers read from tensors
    numpy         arrays and numpy functions
    autograd      backward passes, custom autograd functions and function transforms
    contexts      context managers, locks, random generators
"""
