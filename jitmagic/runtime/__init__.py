"""Turns a plan and kernel text into a callable: compiles, caches, loads and launches.

    load             a Plan and its kernel source -> Loaded, which runs natively
    toolchain        C++ text -> shared library (compilers, linking, units, precompiled, image)
    triton_kernels, numba_kernels   the same for the other languages; one file imports each package
    store, private   the kernel cache on disk: keys -> verified bytes, readable by this user alone
    native           plans as the native executor reads them, and native wrappers around it
    execute          the same in Python, step by step: the reference
    ahead            builds kernels on a background thread
    cudagraph, graph_pool, cuda_driver   CUDA graphs, how many are kept, and the driver's API
    tune, steps, examples   measures candidates, single steps, and makes tensors to do it with
    tiers            warns where a weaker tier than the best one is used
    alignment        which kernel arguments are 16-byte aligned

Nothing here knows graphs or schedules: a plan is all that it takes.
"""
