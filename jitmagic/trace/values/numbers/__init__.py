"""Models Python numbers that vary from call to call, and numbers read from tensors.

A number that varies is a symbol (`symbols/`) whose value is a 0-dim tensor of the graph. Its hint
is its value in the traced call. Its range proves that an operation cannot raise or overflow.
A branch is decided by ranges, else by the hint under a guard. A number read from a tensor is
unbacked: it has no hint, so what the trace assumes of it is asserted in the graph. If an assertion
fails, eager reruns the frame from its start. A use that needs a constant raises Specialize, and the
next attempt at the trace has a guarded constant in place of the symbol.

    scalars               ScalarValue: ints and floats as 0-dim nodes, and their arithmetic
    scalar_calls          tensor operations on a ScalarValue, recorded with a 0-dim tensor
    number_arguments      calls that take no 0-dim tensor: sizes, and floats read at run time
    stacked_numbers       torch.tensor of a list that holds varying numbers
    dimensions            DimensionValue: sizes of tensors as ints of the program
    varying_counts        range(n) and rows of a tensor with a trip count that varies
    items                 tensor.item(), float(tensor), int(tensor)
    counters              item() of an optimizer's step counter
    input_numbers         item() of a CPU input: a symbol with a hint
    read_sizes            a number read from a tensor, used as a size
    number_index          x[i] and x[i] = y where `i` is a 0-dim tensor
    asserted_numbers      assertions that an operation on a read number does not raise
    validation            branches on data with a side that only raises, made assertions
    speculation           assumes the data-dependent values of this call, in library code
    partial_run           runs nodes of the unfinished graph on the inputs of this call
    unresolved_comparison a comparison that only the graph can decide
    precomputed_scalars   numbers that Python computes before the graph runs
    deferred              text and rounded numbers that Python computes after the graph has run
    storage_offsets       guards for as_strided and others with an offset into the storage
"""
