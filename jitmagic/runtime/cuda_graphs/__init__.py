"""Records executables as CUDA graphs and replays them.

replayer        decides what is recorded, and what a replay copies
partitions      decides which parts of a plan are recorded, around what cannot be
refusals        says why a step is not recorded
plan_parts      cuts a plan into parts
replayed_parts  chains the parts of a plan
capture         captures an executable as a graph
graph_pool      limits how many sizes of a graph have recordings
"""
