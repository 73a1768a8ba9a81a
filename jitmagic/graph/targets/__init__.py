"""Targets of nodes that call something else than a function or operator of torch.

attention_kernels   attention with the kernels that the program has chosen
"""
