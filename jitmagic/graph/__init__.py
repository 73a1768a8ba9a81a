"""Builds, checks and prints the torch-level graph that the tracer records.

`GraphBuilder` runs every call on meta tensors as it is recorded, so shapes, aliasing and autograd
history are known at once. `operators/` holds the facts about operators that torch's meta kernels do
not give; `symbolic/` handles sizes and numbers that vary between calls; `targets/` has nodes that
call something else than a function of torch, `triton/` the launches of user-written Triton kernels,
`wrappers/` the nodes that take tensor subclasses apart, `distributed/` calls of torch.distributed.
`data/` turns graphs into frozen data.

    builder           GraphBuilder: placeholders, calls, outputs, the finished GraphModule
    node_meta         the keys of `node.meta`: val, spec, lines, mutates, random ...
    meta_calls        one call on meta tensors: its device, its casts, every check
    target_names      names of the targets of calls
    autocast_mode     the autocast mode of the thread, as data
    propagate         shapes of one torch call, by jitmagic's rules or torch's meta kernels
    rules             ordered tables of rules
    attribution       issues torch's warnings in the name of the user's line
    devices           the device of each result (meta tensors do not know it)
    memory            which storages are written, and by which calls; nodes of meta tensors
    inference_memory  which storages were created under inference mode
    nested, reach     nodes inside nested arguments; ancestors and descendants
    fresh_meta        creates meta tensors; broadcasting
    linked_history    gives a meta tensor an autograd history
    dispatch_mode     base class of jitmagic's torch dispatch modes
    gradients         `torch.autograd.grad` and the gradient of `backward()` as calls of the graph
    subgraphs         splits a graph so that gradients between its results exist
    default_dtype     calls under a default dtype that the program set
    lazy_module       a GraphModule that generates its code on demand; patched names in it
    compile_cost      seconds that a call is expected to add to a compile
    passes            dead code, common subexpressions, user passes
    verify, show      checks the invariants; prints a graph as Python code
"""
