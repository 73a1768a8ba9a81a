"""Facts about torch's operators that their meta kernels do not give.

The meta run of a call (`graph/propagate.py`) tries jitmagic's shape rules before torch's meta
functions: those written in Python cost 150 us a call, and the first call imports sympy or
torch._dynamo. A rule returns None for unusual arguments, and torch's meta function decides.
Afterwards `strictness` refuses calls that meta functions accept and kernels reject.

    shape_rules       the table of shape rules
    shapes            asks the table; shape rules of common operations
    tensor_iterator   layouts of elementwise results
    fallback_shapes   reductions, scans, sorting, pooling, indexing, attention
    network           normalisations, adaptive pools, padding, losses
    convolution       convolutions
    recurrent         LSTM, GRU and RNN layers
    factories         factories and random draws
    without_meta      operators for which torch has no meta function
    symbolic_shapes   symbolic shapes by a checked rule, or by running a call at several sizes
    kernel_probing    shapes and image formats of results from the CPU kernel
    meta_functions    results of calls without a rule: by a kernel or torch's meta function
    device_layouts    layouts that differ on a GPU
    autocast          results of calls under torch.autocast
    foreign           operators registered with torch.library
    operator_library  the torch.library namespace of jitmagic's own operators
    strictness        refuses calls that only real kernels refuse
    kernel_refusals   refuses dtypes and numbers that kernels, or tables, refuse
    overlap           refuses writes whose result depends on their order
    raising           which operations may raise because of tensor data
    target_traits     random draws and hidden writes, by name
"""
