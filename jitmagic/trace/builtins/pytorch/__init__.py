"""Callables of torch and numpy that need more than one node of the graph.

`torch_rules` has the tables of calls that are a node, are inlined, or break; the other modules
handle special cases. A call that they cannot reproduce exactly is a graph break or one eager node.

    torch_rules, torch_calls                   tables by name; predicates and plain objects
    autograd_functions, checkpointing          autograd.Function.apply, torch.utils.checkpoint
    differentiation, gradients, parameters     grad, backward, zero_grad, nn.Parameter
    optimizers, foreach                        wrappers of Optimizer.step, list operations
    transforms, functional_calls               torch.func
    attention, recurrent, nested               scaled dot-product attention, RNNs, padded batches
    spectral, statistics, distributions        composites of C++ that check their data
    autocast, process_state, checks            states and checks
    generators, seeds                          random number generators
    numpy_calls                                numpy functions and conversions
"""
