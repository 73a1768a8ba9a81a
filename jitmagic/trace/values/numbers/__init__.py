"""Numbers that vary from call to call, and numbers read from tensors."""
