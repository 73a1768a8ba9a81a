"""notebook: the IPython extension, with the %%compile cell magic and the line magics.

A %%compile cell is split into definitions, which are tagged, and runs of top-level code, which are
compiled as synthetic functions. Nothing here is imported before `%load_ext jitmagic`.

    magics         the magics, and loading and unloading of the extension
    arguments      declares and parses the options of the magics
    cell           splits a cell into parts
    tagging        tags what a cell defines, and restores the originals
    timeit         %jit_timeit
    caching        %jit_cache
    display        the lines below a cell, and cards of tagged functions
    completion     completion of options and names
    inspection     help on Shift-Tab
    tracebacks     removes the frames of the magic from errors
    cell_sources   syntax trees of cells for IPython's tracebacks
    debugging      a hint for %debug
"""
