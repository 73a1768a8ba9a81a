"""Saves compiled functions and modules to files, and loads them without their source.

    ahead       `jitmagic.aot`: compiles before the first call
    archive     files in one zip, each with a checksum
    saving      `jitmagic.save`: compiles for the calls of examples, and writes an archive
    loading     `jitmagic.load`: reads one; a callable, or a module with its parameters
    program     objects that stand for the program's, in which a loaded graph finds its tensors

An entry in a file is that of `artifact/`, with the guards on its arguments alone: what the program
was (its classes, flags of modules, globals) is fixed when it is saved.
"""
