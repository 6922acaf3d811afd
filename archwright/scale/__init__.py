"""Training of one run on several ranks.

FSDP2 shards and replicates parameters, gradients and optimizer states. Tensor, context, expert and pipeline parallelism
split layers, sequences, experts and stacks of layers. Models contain no code for it: hooks and methods are added here.
Only this room imports torch.distributed, and only in processes started by torchrun.
"""
