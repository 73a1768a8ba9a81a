"""Backwards inside a frame: autograd functions, `.grad`, transforms of torch.func."""
