"""Turns graphs into frozen data that a file can hold, and data into equal graphs.

Live objects become data as rows of `objects` say. What has no row raises CannotKeep.

    forms     GraphData, NodeData and the data of values that are no plain data
    objects   parts of the objects that nodes call
    names     functions and classes by module and name
    writing   graph_data, stored
    reading   graph_of, restored
"""
