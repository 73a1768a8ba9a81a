"""Represents sizes and numbers that vary between calls in torch-level graphs.

Meta tensors hold `Size`s (`symbols/`) as torch.SymInts (`sym_node`); calls whose C++ code needs
ints go through `symbolic_views`, `symbolic_index` and `sized_calls`. Data-dependent sizes split a
graph into partitions.

    sym_node         torch.SymInt over `Size`
    sym_numbers      torch.SymBool and SymFloat
    sym_layouts      contiguity and density of symbolic layouts
    size_nodes       graph nodes for the sizes that calls take
    size_inputs      the graph with sizes as inputs, for user backends
    symbolic_views   views with symbolic sizes
    symbolic_index   indexing by a symbolic int
    sized_calls      calls whose C++ reads sizes as ints
    data_sizes       operators with data-dependent output shapes
    data_split       splits a graph at such operators
    concrete         other values for the symbols of a graph
    merge_graphs     one graph from two traces with other numbers
    number_ranges    floats that calls read at run time, and where they behave alike
    python_numbers   scalar arithmetic in Python for graphs that run as Python
    ranges           interval analysis that decides branches on tensor data
    range_rules      the interval rule of each operation
    intervals        dtype ranges and rounding
    known            values of tensors computed from constants
"""
