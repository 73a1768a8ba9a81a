"""Rewrites programs for the libraries of GPUs: cuBLAS, cuDNN and ATen.

aligned_products, padded_rows   pad the rows of matrix products
activations        let cuBLAS compute the activation after a product
convolution_biases, layouts   separate the biases of convolutions; choose the layouts of images
depthwise, dropouts   write depthwise convolutions as nests; draw the masks of dropouts in kernels
"""
