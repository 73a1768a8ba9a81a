"""Targets of nodes that call something else than a function or operator of torch.

Each is an object that a node calls. A stored graph has its parts (graph/data/objects.py).

    attention_kernels   attention with the kernels that the program has chosen
    control_flow        nodes over graphs: cond, while_loop, scan and map
    inner_graphs        their base if they run graphs
    object_makers       recipes of objects that a backward of the program reads
    recomputed          regions under torch.utils.checkpoint
    regions             calls of autograd functions, with the graph of their backward
    transforms          calls of torch.func transforms, and of functions that are not traced
"""
