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
    name_lookups       guards on the names that torch's Python functions look up
    leaves             requires_grad_(); tensor.data = other
    cached_tensors     tensors that a functools.lru_cache holds
    masks              rewrites indexing by boolean masks to integer indices
    torch_warnings     warnings of torch's C++ for calls that the trace replaces
"""
