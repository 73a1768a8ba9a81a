"""Arrays and numbers of numpy, emulated by tensors."""
