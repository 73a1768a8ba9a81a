"""Writes compiled code to files.

    cxx.py        `save_cxx`: a file that C++ loads and runs without Python (extensions/deploy)
    cxx_entry.py  compiles a function for one example and describes the result as data
    cxx_file.py   encodes the description as JSON, and writes the archive
"""
