"""Rewrites programs for the libraries of GPUs: cuBLAS and cuDNN.

aligned_products, padded_rows   pad the rows of matrix products
activations        let cuBLAS compute the activation after a product
convolution_biases, layouts   separate the biases of convolutions; choose the layouts of images
"""
