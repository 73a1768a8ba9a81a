"""Turns a finished trace into the bytecode that runs in place of the frame.

If the frame is one graph without side effects, no bytecode is needed: `template` tells the native
dispatcher how to build the result. Otherwise `emit` writes a *residual function*. It runs the
graph, makes values from recipes (`rebuild`) and replays the effects. At a graph break it then
executes the breaking instruction and returns the resume function for the edge that was taken.

    emit            the residual function of a trace
    template        results that the dispatcher can build without Python
    rebuild         bytecode for recipes, sources and effects
    resume          the root's code, and the resume functions cut from it
    resume_facts    dimensions and numbers known to vary at a break, passed to the resume function
    generators      rewrites generators and coroutines: their frames call compiled pieces
    generator_facts the variables that these pieces read and set
    undo            decides whether eager may run the frame from its start after an error
    finalizers      breaks where the last reference to an object with `__del__` is dropped
    frame_readers   finds callees that may read a caller's variables (`f_locals`): all stay bound
"""
