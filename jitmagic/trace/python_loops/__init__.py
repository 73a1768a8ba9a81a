"""Loops that are not unrolled: decides which loops Python runs, and compiles their iterations.

A loop is unrolled into the graph unless its trip count varies (`rolled`), its iterations compute
gradients (`training`), or it runs long without tensor work (`plain`). Rolled and training loops
break at the head: Python advances the iterator, and each iteration runs one compiled resume
function. A plain loop is left to Python as a whole.

    rolled       loops whose trip count varies
    peeled       decides whether the first iteration belongs to the graph before the loop
    training     loops whose iterations compute gradients
    plain        long loops without tensor work
    exit_edges   the edges by which control leaves the code that Python runs
"""
