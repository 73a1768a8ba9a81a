"""Models tensors, and the functions and namespaces of torch.

A TensorValue holds a node of the FX graph and its meta tensor. Operators, methods and torch
functions become nodes through `tensor.record`, through which all tensor calls of the program are
recorded. A graph calls methods by name, so a guard checks that each name is torch's original.

    tensor             TensorValue, and `record`, `lower` and `lift` between values and nodes
    tensor_class       attributes and special methods that user code put on torch.Tensor
    tensor_members     rules for attributes and methods: constants, nodes, graph breaks
    tensor_inputs      live tensors as guarded graph inputs, or the reason why they cannot be
    tensor_hooks       register_hook and retain_grad of tensors computed by the trace
    torch_function     torch functions and operators: one node, inlined, or a graph break
    torch_namespaces   torch's own modules, classes and Python functions, guarded by namespace
    subclasses         wrapper subclasses, taken apart into inner tensors
    function_subclasses, function_modes   `__torch_function__` of subclasses and of modes
    ragged_sizes       sizes of nested tensors
    name_lookups       guards on the names that torch's Python functions look up
    leaves             requires_grad_(); tensor.data = other
    gradients          reads and writes of `.grad`
    draws              tensors that Python computes before the graph runs
    truth              answers `bool(tensor)`
    masks              rewrites indexing by boolean masks to integer indices
"""
