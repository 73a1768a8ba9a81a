"""diagnostics: reads the records that pipeline keeps and shows them. No stage knows of this room.

`explain` knows the results of the stages; `progress` knows the records only, and is loaded with
jitmagic.
"""
