"""Compiles a frame: the stages from a snapshot of a call to an entry that serves later calls.

`pipeline` lists the stages in order. A graph with symbolic sizes is compiled once for all sizes:
`sizes` looks up the sizes of a call, `sized_joint` holds the joint graph and `template` the kernels
that serve them. Sizes that a stage reads as ints are constants of a joint graph. Only a graph that
cannot have symbols at all is compiled like a static one, once for each size tuple (the values of
all symbols in one call). Every stage is timed in a `Recording`. If a stage fails, the frame runs in
eager, with a warning.

    pipeline         the order of the stages
    tracing          traces a frame, with what earlier calls have shown as assumptions
    retracing        the reasons to trace it again with other assumptions
    graph_passes     passes of the user, and checks of the graphs that they edit
    executable       lower, schedule, render, load: one ATen graph by the best tier
    entries          builds the entry (guards, executable or residual) of a trace
    compared         which variants are timed against eager on their first calls
    backends         backend="eager" and backends of the user
    sizes            serves a graph with symbols at the sizes of each call
    sized_joint      one joint graph for all sizes, traced with SymInts
    template         one set of kernels for all sizes, with the predicates they rely on
    sized_backend    one graph for all sizes, for a user's backend
    buckets          batches run at a few sizes, where rows do not depend on each other
    data_partitions  partitions of graphs with data-dependent sizes
    subgraphs        one autograd node per result that other results are computed from
    lazy_backwards   backwards, compiled at their first use
    func_transforms  graphs that are called under torch.func's vmap, grad or jvp
    frozen_weights   inference with weights as constants
    background       compiles or builds C++ kernels while calls run as eager
    thread_state     the torch state of the calling thread, for the thread that compiles
    tuning           measurements of mode="max-autotune"
    profiler_names   names of graphs and kernels in profilers
"""
