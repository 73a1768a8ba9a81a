"""Splits a torch-level graph into ATen graphs of forward and backward, as AOTAutograd does.

    result              Joint, Partition: the data that later stages read
    joint               runs the graph under C++ autograd and records forward and backward
    symbolic_joint      the joint graph for symbolic sizes
    numbers_read_at_run_time  the joint graph for floats that vary between calls
    recording/          the dispatch mode that records functional ATen calls
    decompose/          decompositions of ATen operations, applied while recording
    outputs             results of the graph, and views of them that are replayed after it
    saved_tensor_hooks  finds the tensors that eager would save, so that writes to them raise
    partition           forward and backward by a minimum cut (mincut): save or recompute
    backward_graphs     backwards without some tangents, or of saved values in other layouts
    autograd_function   the callable with native autograd nodes
    replay              op-by-op runs for double backward and batched gradients
    freezing            values that depend on constant weights alone
    nodes, verify       queries on ATen nodes; checks a joint graph at one size tuple

The stages call `joint` and `partition`; `autograd_function` makes what a call runs.
"""
