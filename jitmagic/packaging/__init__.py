"""Saves compiled functions and modules to files, and loads them without their source.

    ahead       `jitmagic.aot`: compiles before the first call
    examples    the calls for which a program is saved
    archive     files in one zip, each with a checksum
    program     names what a saved program reads, and holds it in a loaded one
    lifting     finds what a compiled call reads and writes of its program
    state       what calls both read and write
    values      writes these values
    saving      `jitmagic.save`: compiles for the calls of examples, and writes an archive
    loading     `jitmagic.load`: reads one; a callable, or a module with its parameters
    cxx         `save_cxx`: a file that C++ loads and runs without Python (extensions/deploy)
    cxx_call    traces the call of an example and finds what its tensors are
    cxx_entry   compiles the trace and describes the result as data
    cxx_file    the description as JSON, with its tensors and kernels

An entry in a file is that of `artifact/`, with the guards on its arguments alone: what the program
was (its classes, flags of modules, globals) is fixed when it is saved. An entry for C++ is a plan.
"""
