"""Models autograd inside a frame: user-defined backwards, `.grad`, transforms of torch.func.

The forward and backward of a `torch.autograd.Function` are traced with the frame. The backward runs
later, so that what it reads of Python's state is recorded as facts that each backward checks. If a
fact no longer holds, the user's own backward runs on a `ctx` that is rebuilt. Checkpointed regions
that are recomputed use the same mechanism. A transform of torch.func is one node, whose function is
traced on the plain tensors of one level.

    backward_facts     facts of Python's state that a traced backward relies on
    function_context   `ctx` in the forward and in the backward
    rebuilt_objects    rebuilds `ctx` and function arguments when the backward runs in eager
    gradients          reads and writes of `.grad`
    transformed        calls of functions returned by torch.func.grad, vmap, vjp, ...
"""
