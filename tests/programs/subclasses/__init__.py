"""Programs over subclasses of torch.Tensor: wrappers that are taken apart, and torch functions."""
