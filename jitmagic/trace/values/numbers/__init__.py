"""Models Python numbers that vary from call to call, and numbers read from tensors.

A number that varies is a NumberValue. Its Scalar has an expression over symbols (`symbols/`) and is
a constant, a size or a 0-dim tensor of the graph. The hint of a symbol is its value in the traced
call. Its range proves that an operation cannot raise or overflow. A branch is decided by ranges,
else by the hint under a guard. A number read from a tensor is unbacked: it has no hint, so what the
trace assumes of it is asserted in the graph. If an assertion fails, eager reruns the frame from its
start. A use that needs a constant raises Specialize, and the next attempt at the trace has a
guarded constant in place of the symbol.

As an argument of a torch call, a number takes the first of these forms that the call accepts:

    a 0-dim tensor, where a rule says how eager rounds the number     scalar_calls
    a float that the call reads at run time, within a range           number_arguments
    a size                                                            Scalar.as_size
    a constant                                                        Scalar.refuse

The modules, in the order of their imports:

    speculation           the data-dependent values of this call, assumed in library code
    assertions            what the trace assumes of data, asserted in the graph
    precomputed_scalars   numbers that Python computes before the graph runs
    arithmetic            Scalar (a constant, size or node), and Python's arithmetic on it
    number                NumberValue: ints, floats and bools
    residual_calls        text and rounded numbers that Python computes after the graph has run
    clamping              clamp by 0-dim tensors, with the gradient that a number gives
    number_arguments      calls that take no 0-dim tensor: sizes, and floats read at run time
    scalar_calls          tensor operations on a Scalar, recorded with a 0-dim tensor
    tensor_numbers        tensor.item(), float(tensor), int(tensor)
    torch_arguments       constants, and numbers in tensors, as arguments of torch calls
    number_index          x[i] and x[i] = y where `i` is a 0-dim tensor
    varying_counts        range(n) and rows of a tensor with a trip count that varies
"""
