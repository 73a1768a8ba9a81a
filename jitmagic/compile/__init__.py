"""Compiles a frame: the stages from a snapshot of a call to an entry that serves later calls.

`pipeline` lists the stages in order. A graph with symbolic sizes is compiled once for all sizes
where possible (`sized_joint`, `template`); otherwise `sizes` makes one executable for each size
tuple. Every stage is timed in a `Recording`. A stage that fails makes the frame run in eager,
visibly.

    pipeline         the order of the stages
    tracing          traces a frame; chooses which sizes and numbers are symbols
    executable       lower, schedule, render, load: one ATen graph by the best tier
    entries          builds the entry (guards, executable or residual) of a trace
    compared         which variants are timed against eager on their first calls
    backends         backend="eager" and backends of the user
    sizes            executables of a graph with symbols, by size tuple
    sized_joint      one joint graph for all sizes
    sized_backend    one graph for all sizes, for a user's backend
    template         one set of kernels for all sizes
    data_partitions  graphs with data-dependent sizes
    subgraphs        graphs whose results are computed from one another
    lazy_backwards   backwards, built at their first use
    frozen_weights   inference with weights as constants
    background       eager until C++ kernels are built in the background
    tuning           measurements of mode="max-autotune"
    profiler_names   names of graphs and kernels in profilers
"""
