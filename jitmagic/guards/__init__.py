"""Guards and the sources they read, as data; frame/native.py lowers them to a native program.

    source/          where a value came from: a path from an argument, a global, ...; per kind its
                     text, how it is read, its native step and its bytecode
    guard            the records: facts about the value at a path
    kinds/           per kind: native steps, Python check, and the sentence for the user
    check            evaluates guards in Python: which one fails, and why
    read             follows a source in a live frame
    live_objects     reads parts of objects without running user code
    words            describes values in those sentences
    state            the thread's torch state, for the GlobalState guard
    sizes            checks relations between symbolic sizes
    weak_fields      weak references from guards to the user's objects
    constants        values that are compared by content
    contents, iterator_parts, function_cache   read containers, iterators and lru_caches

The tracer installs guards while it reads; every one has the source it is about.
"""
