"""Models context managers and the state of threads: modes, devices, locks.

A `with` block changes only the state of the trace, not that of the thread. At a graph break inside
the block, an effect sets the thread's state, and the recipe of the block's `__exit__` builds a
context that is already entered, for the resume function to exit. If that is impossible, the graph
break moves before the block.

    contexts          the class of context managers, and what a row of it says
    torch_contexts    rows: grad and inference mode, flags of cuDNN, marks for a profiler
    inference         inference tensors
    default_device    set_default_device, `with torch.device(...)`
    default_dtype     set_default_dtype
    context_vars      contextvars.ContextVar
    threads           locks and threading.local
"""
