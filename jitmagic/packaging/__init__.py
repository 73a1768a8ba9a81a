"""Saves compiled functions and modules to files.

    cxx         `save_cxx`: a file that C++ loads and runs without Python (extensions/deploy)
    cxx_call    traces the call of an example and finds what its tensors are
    cxx_entry   compiles the trace and describes the result as data
    cxx_file    encodes the description as JSON, and writes the archive

docs/pages/artifact.md has the format of the archive.
"""
