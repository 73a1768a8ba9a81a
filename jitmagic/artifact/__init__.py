"""Turns compiled entries into data that another process can load.

Input: an entry of a dispatcher with its guards, executable and result. Output: an `EntryData`,
frozen, without live objects; as bytes, JSON with the version of its format. The other process
makes the entry again: it finds the named objects, checks that they are what they were, lowers the
guards to native steps and calls the factories that made the executable. It neither traces nor
schedules, and it runs nothing that is not in the checked bytes.

    fingerprint     equality of code between processes
    references      names and checks of live objects
    codec           frozen data as JSON
    vocabulary      the frozen classes that an artifact has
    code_objects    residual functions as data
    guards          guards and sources as data, bound to the objects of a frame
    collectives     process groups, and operators that call collectives
    registrations   operators of other libraries, in files of save
    graph_texts     graphs that a stage may still need, as texts
    writing         executables as data
    later           what is compiled later, for an entry of another process
    sizes           executables for all sizes, made again
    reading         executables made again
    entry           one compiled entry as bytes, and bound to a handle
    library         entries on disk: the key of a function, and what a miss finds there

A value that has no such form raises CannotKeep, which says what it is; the entry then lives as
long as the process.
"""
