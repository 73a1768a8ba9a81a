"""Models torch.nn.Module: live and new modules, their hooks, slices of containers.

A call inlines `forward`, with hooks around it as in Module._call_impl. A live module has one guard
of its type and one EntriesEmpty guard, which checks several dictionaries at once: no hooks, no
`forward` in the instance's `__dict__`, no `__dict__` entry that shadows a parameter.

    nn_module         live modules: attributes, parameter tables, calls
    new_modules       modules that the traced code creates
    module_slices     slices of ModuleList and Sequential
    module_hooks      forward hooks and pre-hooks, of one module and global
    backward_hooks    full backward hooks, if the backward is in the same graph
    hook_handles      registration and removal of hooks
"""
