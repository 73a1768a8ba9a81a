"""checking: compares compiled code with eager, and reduces a failing graph to a small script.

A call is captured as graphs with copies of their input tensors (`cases`). One rule decides whether
two results agree: the distance of each to a float64 run (`agreement`). Every tool uses that rule.

    cases             captures the graphs of a call; runs a function and collects its results
    agreement         decides per tensor whether compiled code and eager agree
    plain_call        compares the captured call with the user's function as plain Python
    passport          jitmagic.passport: a table of results, mutated inputs and gradients
    input_variation   jitmagic.test: random variations of sizes, layouts, dtypes and values
    minify            jitmagic.minify: delta debugging to a small failing graph
    scripts           writes a graph as a Python script, and runs such scripts
    capsules          the files with which a compiled graph can be replayed elsewhere
"""
