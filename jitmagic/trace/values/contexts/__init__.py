"""Models context managers and the state of threads: modes, devices, locks, random generators.

A `with` block changes the state of the trace alone. At a graph break inside the block, an effect
sets the state of the thread and the block's `__exit__` is rebuilt as that of a live context which
is already entered. A block for which that is impossible breaks the graph before it.

    contexts          no_grad, enable_grad, set_grad_enabled
    inference         inference_mode and inference tensors
    default_device    set_default_device, `with torch.device(...)`
    default_dtype     set_default_dtype
    library_flags     torch.backends.cudnn.flags
    record_function   torch.profiler.record_function
    random_streams    generators of `random` and `numpy.random`
    context_vars      contextvars.ContextVar
    threads           locks and threading.local
"""
