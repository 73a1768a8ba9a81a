"""diagnostics: shows the records that the pipeline keeps. No stage knows of this package.

`explain` knows the results of the stages and is loaded when it is first asked for.
"""
