"""Calls of torch.distributed in graphs.

objects   meshes, groups and placements, bound to the calls that take them
waited    operators that call a collective and wait
joining   small collectives that become one; packing writes the calls around it
rooted    operators for collectives of which torch has no functional form
"""
