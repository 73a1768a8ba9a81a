"""Records a program as a functional ATen graph: mutation and views are removed while it runs.

functionalize    the dispatch mode that sees every ATen call; dispatches to handlers
recorder         builds the graph: decomposes, merges equal calls, runs meta kernels
sym              Sym, a value of the graph, with the arithmetic that decompositions use
aten_call        AtenCall, a call as the dispatch mode receives it
traced           Traced, a tensor of the program: a path of views into a Cell (one storage)
views            view steps: read a view from its base, write it back
view_calls       handlers of view operations
mutate           functional forms of in-place operations
foreign_writes   the same for operators that write to any argument: custom ones, for example
collectives      functional collectives of torch.distributed, which the graph waits for
recorded_call    calls a function of the torch-level graph
checked          composites that would skip a data check on tensors without data
products         the gradient of prod: torch's own formula branches on data
transformed      torch.func transforms
custom           user-defined autograd functions, whose backward need not be linear
origins          maps autograd nodes to the operations that created them
"""
