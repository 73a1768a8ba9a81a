"""Records executables as CUDA graphs and replays them.

replayer        decides what is recorded, and what a replay copies
capture         captures an executable as a graph
graph_pool      limits how many sizes of a graph have recordings

Where only parts of a plan can be recorded:

refusals        says why a step is not recorded
partitions      decides where the plan is cut
plan_parts      makes plans of the parts
replayed_parts  chains their executables
"""
