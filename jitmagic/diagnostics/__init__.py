"""diagnostics: reads the records that pipeline keeps and shows them. No stage knows of this room.

`explain` knows the results of the stages and is loaded when it is first asked for.
"""
