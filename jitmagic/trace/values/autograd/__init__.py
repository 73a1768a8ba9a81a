"""Models autograd inside a frame: user-defined backwards, `.grad`, transforms of torch.func.

The forward and backward of a `torch.autograd.Function` are traced with the frame. The backward runs
later, when Python state that it reads may have changed. So each read is recorded as a fact, a guard
that every run of the backward checks. If a fact no longer holds, the user's own backward runs in
eager on a rebuilt `ctx`. Recomputed regions (activation checkpointing) use the same mechanism. A
transform of torch.func is one node, whose function is traced on the plain tensors of one level.

    backward_facts     guards on the Python state that a traced backward reads
    function_context   `ctx` in the forward and in the backward
    later_hooks        hooks of tensors that a backward after the call runs
    rebuilt_objects    rebuilds `ctx` and function arguments when the backward runs in eager
    forward_mode       dual tensors, and their tangents, of torch.autograd.forward_ad
    traced_backwards   the lists of both, which every trace looks at
    transformed        calls of functions returned by torch.func.grad, vmap, vjp, ...
"""
