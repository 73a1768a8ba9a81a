"""Lets the processes of a distributed program tell each other what they compile.

board       notes in the store of the process group, and the thread that reads them
decisions   choices that the first rank makes for all
waits       which rank the others wait for
"""
