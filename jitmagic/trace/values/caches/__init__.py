"""Models functools.lru_cache: its entries are read at each call, its misses inlined.

lru_cache        hits, misses, and calls that fill the cache
cached_tensors   cached tensors as inputs of the graph
"""
