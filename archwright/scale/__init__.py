"""Many devices: one run that several processes train together, each on its rows of every batch.

Parameters, gradients and the optimizers' states are replicated, sharded, or both, by torch's FSDP2, and layers are
shared by their heads and hidden values, tensor parallel. Both are applied from outside: a model knows nothing of it.
Only this room imports torch.distributed, and only in processes that torchrun started.
"""
