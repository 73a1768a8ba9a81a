"""Recognises attention that a program writes out, and computes it by torch's fused kernels.

    reading    the call that computes a node's value at a place of the program, also in place
    products   both matrix products, in one form for matmul, bmm and einsum
    scores     the steps between a product and its softmax: factors, biases, masks
    matching   the whole: two products with a softmax between them, and nothing that forbids it
    masks      which elements a mask keeps: triangles, and constants
    profit     devices, dtypes and lengths for which the fused kernels are faster
    writing    the call of scaled_dot_product_attention, and what stands around it

`fuse_attention` runs before autograd sees the graph, so gradients are those of the fused kernels.
"""
