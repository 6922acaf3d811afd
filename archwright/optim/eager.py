"""torch's optimizers without their guards against the compiler, which load it where nothing is compiled."""

import inspect

import torch


class EagerOptimizer(torch.optim.Optimizer):
    """`torch.optim.Optimizer`, which no compiled code calls.

    torch keeps the compiler out of these methods, and loads all of it to do so: most of two seconds, at the
    start of every run. The methods are the same behind the guards.
    """

    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW`, to the last bit."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
