"""The torch-level graph: how it is built node by node, what its nodes carry, how it is checked and
shown.

node_meta   what every node carries: val, spec, lines, mutates, random
devices     on which device a result lives (meta tensors do not know)
propagate   one torch call executed on meta tensors
attribution calls in the name of a user line, for the warnings of torch
builder     GraphBuilder: placeholders, calls, outputs, the finished GraphModule
reach       what a node is computed from, and what from it
passes      dce, cse, user passes      verify   the invariants      show   text for people
"""
