"""One module per library that people come from: torch, timm, ema_pytorch, torch_ema, diffusers.

Each class has that library's construction, calls and state-dict keys. The average is a real module, or a real list of
tensors, so what is written into it counts and references to it stay valid. None of the libraries is imported.
"""
