"""Targets of nodes that call something else than a function or operator of torch.

attention_kernels   attention with the kernels that the program has chosen
control_flow        nodes over graphs: cond, while_loop, scan and map
inner_graphs        their base if they run graphs
recomputed          regions under torch.utils.checkpoint
regions             calls of autograd functions, with the graph of their backward
transforms          calls of torch.func transforms, and of functions that are not traced
"""
