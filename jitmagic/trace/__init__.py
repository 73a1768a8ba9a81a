"""The tracer: interprets the bytecode of one frame and returns a Trace.

1. Machine. `machine.trace` interprets the frame's instructions over Values instead of objects. Each
   opcode has a handler in `opcodes/`; calls of Python functions are inlined.
2. Values. A Value (`values/base.py`) models one object: a constant, a tensor of the graph, a
   container. `wrap.py` makes Values of live objects; every fact read of those becomes a guard.
3. Effects. Tracing changes no live object. Writes are logged (`effects.py`) and replayed after the
   graph, in program order. A Recipe (`result.py`) says how the emitted code makes a value.
4. Breaks and restarts. Code that cannot be traced raises `GraphBreak` with a reason (`breaks.py`).
   The attempt is discarded. The next one traces the frame again and ends before the root frame's
   instruction during which the break was raised (`restarts.py`).
5. Resume functions. `residual/` emits bytecode that runs the graph, replays the effects and
   executes the breaking instruction. The rest of the frame is a resume function with traces of its
   own.
6. Symbols. Sizes and numbers that vary are symbols (`varying/`). If the program needs the value of
   one, the trace restarts with that symbol as a guarded constant.
7. Assumptions. One frozen record (`assumptions.py`) says which sizes and numbers may be symbols and
   how each loop is treated. After a finished trace, a table of rules (`compile/retracing.py`)
   decides whether to trace again with other assumptions.

    opcodes/        opcode handlers by family, for each version of Python
    values/         models of objects, by kind
    builtins/       models of callables written in C, of the standard library and of torch
    varying/        decides which sizes and numbers are symbols
    python_loops/   loops that Python runs: unrolling takes too long, or the trip count varies
    residual/       emits the residual function, and the resume functions after a break
    machine         the interpreter; `state` has its frames and its guards
    fresh_values    Values of objects that the trace creates
    result          the data that a trace returns
    assumptions     the facts and choices that a trace starts from
    attempts        what the next attempt assumes after one that could not be finished
    knowledge       one Value for each live object
    graph_notes     facts about a graph under construction that only the tracer needs
    region          graphs within a graph: backwards, functions under torch.func, loop bodies
    input_memory    guards and breaks for in-place writes to graph inputs
    dead_calls      probes the kernels of calls that dead-code elimination would drop
"""
