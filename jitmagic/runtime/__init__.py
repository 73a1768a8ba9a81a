"""Turns a plan and kernel text into a callable: compiles, caches, loads and launches.

    load             a Plan and its kernel source -> Loaded, which runs natively
    toolchain          C++ text -> shared library; parts of it: compilers, precompiled (the header),
                       translation_units, linking, memory_loading
    triton_kernels, numba_kernels   the same for the other languages; each imports its package
    store              the cache on disk: keys -> verified bytes; private_files says which files are
                       trusted, size_limit removes the least recently used ones, bundles packs
                       files into a zip and checks one
    user_kernels       launches of user-written Triton kernels, for the native executor to repeat
    native             plans as the native executor reads them, and native wrappers around it
    plan_interpreter   runs a plan in Python, step by step: the reference implementation
    background_builds  builds kernels on a background thread
    cuda_graphs        records executables as CUDA graphs and replays them
    cuda_driver        the driver's API
    tune, step_timing, examples   measure candidates and single steps, and make tensors for that
    alignment          which kernel arguments are 16-byte aligned

Nothing here knows graphs or schedules, except user_kernels the form of a launch: a plan is all that
it takes.
"""
