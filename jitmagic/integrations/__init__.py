"""integrations: jitmagic where other libraries run the training loop. Import the one you need.

torch_compile   torch.compile(model, backend="jitmagic"); found by name, nothing to import
transformers    Trainer(..., callbacks=[JitCallback()])
lightning       Trainer(..., callbacks=[JitCallback()])
accelerate      prepare(accelerator, model, optimizer, ...); register_backend()
"""
