"""Lets the processes of a distributed program tell each other what they compile.

board   notes in the store of the process group, and the thread that reads them
sizes   which sizes are dynamic: every rank compiles when one has to
waits   which rank the others wait for
"""
