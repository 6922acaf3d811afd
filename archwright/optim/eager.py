"""Optimizers of torch without compiler guards, which import the compiler even if nothing is compiled."""

import inspect

import torch


class EagerOptimizer(torch.optim.Optimizer):
    """`torch.optim.Optimizer` without the guards that exclude its methods from compilation.

    The guards import the complete compiler. Without them, the first step of the demo ends after 5.4 instead of 7.0 s of
    processor time (medians; AMD EPYC, Zen 3, next to other work, 2026-11-28).
    """

    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` with the same arguments, state and results.

    m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g^2 from 0; at step t, counted from 1,
    w <- (1 - lr weight_decay) w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
    `build_optimizers` excludes norms and biases from weight decay.

    Kingma and Ba, 2014, algorithm 1; Loshchilov and Hutter, 2017, algorithm 2.
    """

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
