"""Callables of torch and numpy that need more than one node of the graph.

`torch_rules` has the tables of calls that are a node, are inlined, or break; the other modules
handle special cases. A call that they cannot reproduce exactly is a graph break or one eager node.

    torch_rules, torch_calls              tables by name; predicates, plain objects, nn.Parameter
    composites                            composites of C++ that check their data
    autograd_functions, checkpointing     autograd.Function.apply, torch.utils.checkpoint
    differentiation, functional           grad, backward, zero_grad; torch.func
    control_flow                          torch.cond, while_loop, scan, map
    optimizers                            wrappers of Optimizer.step, list operations
    attention, recurrent                  scaled dot-product attention, padded batches, RNNs
    autocast, process_state, checks       states and checks
    random_numbers                        seeds and generators of random numbers
    collectives                           collectives that write to an argument
    numpy_calls                           numpy functions and conversions
"""
