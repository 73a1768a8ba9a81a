"""Models plain Python objects: constants, functions, classes, instances, exceptions, namespaces.

Guards identify a live object by its identity (classes, modules, enum members, C functions), its
code (Python functions), its type and attributes (instances), or its value (constants). A fact is
guarded where the trace reads it. Calls of functions and methods written in Python are inlined;
calls of C functions go to the handlers of `trace/builtins/`.

    constants           immutable atoms, folding
    enums               enum members and classes
    type_forms          `list[int]`, `int | None`, `typing.List`
    functions           Python functions, cells, bound methods
    partials            functools.partial objects
    binding             arguments of an inlined call bound to parameters
    callables           C functions and bound methods of built-in types
    torchscript         functions of torch.jit
    tagged              functions of jitmagic.jit() and disable()
    monkey_patches      detects library functions that the user replaced
    classes             attribute lookup on the MRO, descriptors, `super`, construction
    class_facts         guarded facts about classes, isinstance and issubclass
    class_statements    class statements in the traced code
    instances           instances of Python classes: attributes and special methods
    found_attributes    `getattr(obj, name)` with a str input whose value is not guarded
    special_methods     names of the methods of operators
    operators           operators, comparisons, `is`, as Objects/abstract.c
    exceptions          exception objects
    namespaces          globals and Python modules
    weak_references     weakref.ref
    fixed_objects       meshes, groups and placements of torch.distributed
    works               collectives that the graph starts, until they are waited for
    identity, opaque    bases: objects guarded by identity; objects whose type has no model
"""
