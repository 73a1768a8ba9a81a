"""Models tensors, and the functions and namespaces of torch.

A TensorValue holds a node of the graph and its meta tensor. Operators, methods and torch functions
become nodes through `tensor.record`, the only place that adds calls of the program to the graph.
What the graph calls by name is guarded to be torch's original.

    tensor             TensorValue, and `record`, `lower` and `lift` between values and nodes
    tensor_operators   the function of the `operator` module for each sign
    tensor_class       attributes and special methods that user code put on torch.Tensor
    tensor_queries     methods that are answered from metadata, without a node
    tensor_inputs      live tensors as guarded graph inputs, or the reason why not
    tensor_hooks       register_hook and retain_grad of tensors computed by the trace
    torch_function     torch functions and operators: one node, inlined, or a graph break
    torch_namespaces   torch's own modules, classes and Python functions, guarded by namespace
    name_lookups       guards on the names that torch's Python functions look up
    autograd_leaves    requires_grad_() of a tensor
    bound_data         tensor.data = other
    cached_tensors     tensors that a functools.lru_cache holds
    masks              indexing by boolean masks, as integer indices
    torch_warnings     warnings of torch's C++ for calls that the trace replaces
"""
