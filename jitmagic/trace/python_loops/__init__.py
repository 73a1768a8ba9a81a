"""Decides which loops are not unrolled into the graph, but run by Python.

A loop is unrolled unless its trip count varies (`rolled`), its iterations compute gradients
(`training`), or it runs long without tensor work (`plain`). Rolled and training loops have a graph
break at the head: Python advances the iterator, and each iteration is a call of one compiled resume
function. A plain loop runs in Python as a whole.

    rolled       loops whose trip count varies
    peeled       decides whether the first iteration belongs to the graph before the loop
    loop_facts   the loops of a function as its earlier traces have found them
    training     loops whose iterations compute gradients
    plain        long loops without tensor work
    exit_edges   control-flow edges out of the code that Python runs
"""
