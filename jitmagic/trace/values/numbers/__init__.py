"""Models Python numbers that vary from call to call, and numbers read from tensors.

A number that varies is a symbol (`symbols/`) whose value is a 0-dim tensor of the graph. The range
of the symbol proves that an operation cannot raise or overflow. A branch is decided by ranges or by
a guard. A number read from a tensor has no value while tracing, so that failures are asserted in
the graph; a failed assertion makes eager rerun the frame from its start.

    scalars               ScalarValue: ints and floats as 0-dim nodes, and their arithmetic
    scalar_calls          tensor operations that take a ScalarValue, by 0-dim tensors
    number_arguments      calls without such a form: sizes, and floats read at run time
    stacked_numbers       torch.tensor of a list that holds such numbers
    dimensions            DimensionValue: sizes of tensors as ints of the program
    varying_counts        range(n) and rows of a tensor with a trip count that varies
    items                 tensor.item(), float(tensor), int(tensor)
    counters              item() of an optimizer's step counter
    input_numbers         item() of a CPU input: a symbol with a known value
    read_sizes            a number read from a tensor, used as a size
    number_index          x[i] and x[i] = y where `i` is a 0-dim tensor
    asserted_numbers      assertions that an operation on a read number does not raise
    validation            assertions on branches of which one way only raises
    speculation           values that data decide in library code, taken from this call
    partial_run           runs nodes of the unfinished graph on the inputs of this call
    unresolved_comparison a comparison whose answer only the graph knows
    precomputed_scalars   numbers that Python computes before the graph runs
    deferred              text and rounded numbers that Python computes after the graph has run
    storage_offsets       guards for as_strided and others with an offset into the storage
"""
