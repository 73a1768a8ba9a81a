"""Records executables as CUDA graphs and replays them.

replayer     decides what is recorded, and what a replay copies
refusals     says why a plan is not recorded
capture      captures an executable as a graph
graph_pool   limits how many sizes of a graph have recordings
"""
