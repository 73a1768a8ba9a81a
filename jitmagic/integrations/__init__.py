"""integrations: uses jitmagic in libraries that run the training loop. Import the one you need.

torch_compile   torch.compile(model, backend="jitmagic"); needs no import, torch finds it by name
transformers    Trainer(..., callbacks=[JitCallback()])
lightning       Trainer(..., callbacks=[JitCallback()])
accelerate      prepare(accelerator, model, optimizer, ...); register_backend()
"""
