"""Splits a torch-level graph into ATen graphs of forward and backward, as AOTAutograd does.

    result           Joint, Partition: the data that later stages read
    joint            runs the graph under C++ autograd and records forward and backward
    recording/       the dispatch mode that records functional ATen calls
    decompose/       decompositions of ATen operations, applied while recording
    sized            the joint graph for symbolic sizes
    varying_numbers  the joint graph for floats that vary between calls
    outputs          results of the graph, and views of them that are replayed after it
    saving           which tensors eager would save, so that writes to them raise as in eager
    partition        forward and backward by a minimum cut (mincut): save or recompute
    saved            strides of saved values, chosen by kernels
    partial          backwards that lack some tangents
    shell            the callable with native autograd nodes
    replay           op-by-op runs for double backward and batched gradients
    freezing         values that depend on constant weights alone
    nodes, verify    queries on ATen nodes; checks a joint graph at one size tuple

The stages call `joint` and `partition`; `shell` makes what a call runs.
"""
