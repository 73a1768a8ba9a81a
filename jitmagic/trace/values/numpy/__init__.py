"""Models arrays and numbers of numpy by tensors of the graph.

An array of numpy is a tensor of the graph with another interface. A call of a numpy function runs
torch's emulation of it (torch._numpy) on meta tensors, and the torch calls that it makes become
nodes. Before that, a probe runs numpy's function and the emulation on sample values; if the results
differ, the call is a node that calls numpy (np.linalg), or a graph break. With varying sizes, the
probe runs at several size tuples.

    arrays           ArrayValue, and `emulate`, which records a call
    emulation        the private instance of torch._numpy
    library_code     records the torch calls of library code by running it on meta tensors
    emulation_check  compares numpy and the emulation on sample values, at several sizes
    array_samples    sample arrays with the layouts of the program's
    numpy_nodes      calls of np.linalg as nodes that call numpy itself
    numpy_operators  the operators of these nodes
    numbers          NumpyNumber: ints and floats of numpy that vary
    random_streams   generators of `random` and `numpy.random`
"""
