"""BigBird's mask: neighbouring, outer and random blocks."""

import torch
from torch import Tensor

from archwright.classic.spec import big_bird as spec
from archwright.parts.masks import BuiltIn, Ranges, united


class BigBird(BuiltIn[spec.BigBird]):
    """Neighbouring blocks, the first and the last block, and random blocks; the first and the last block see all.

    Random blocks equal the training plan of the published code for lengths other than 1,024, 3,072 and 4,096, which
    have another plan. For each block and head: the first r of a permutation of the first 2 r + 5 blocks, without
    blocks that are already visible. The generator is numpy's legacy generator, seeded with the layer's index from 0.

    Zaheer et al., 2020, section 2, and appendix D; transformers, modeling_big_bird.py.
    """

    lookahead = None
    needs_length = True

    def __init__(self, spec: spec.BigBird, num_heads: int = 1, layer: int = 1) -> None:
        self.spec, self.layer = spec, layer
        self.num_heads = num_heads if spec.differs_by_head else 1
        self.repeats = spec.num_random > 0 and not spec.differs_by_head
        self.shortest = (5 + 2 * spec.num_random) * spec.block_size
        """Largest document length without hidden keys, in tokens."""
        self._drawn = torch.zeros(num_heads, 0, spec.num_random, dtype=torch.long)

    def visible(self, query: Tensor, key: Tensor, head: Tensor | int = 0) -> Tensor:
        indices = [torch.as_tensor(index) for index in (query, key)]
        # Meta tensors have shapes but no values. The document ends far after the last index.
        last = sum(0 if index.is_meta else int(index.max()) for index in indices)
        endless = torch.as_tensor(last + 2 * self.shortest)
        return self.visible_in(query, key, endless, int(endless), head)

    def visible_in(
        self, query: Tensor, key: Tensor, length: Tensor, longest: int, head: Tensor | int = 0
    ) -> Tensor:
        size = self.spec.block_size
        of_query, of_key, last = query // size, key // size, (length - 1) // size
        near = (of_query - of_key).abs() <= 1
        outer = (of_query == 0) | (of_key == 0) | (of_query == last) | (of_key == last)
        shown = near | outer | (length <= self.shortest)
        if self.spec.differs_by_head:
            drawn = self.drawn(-(-longest // size)).to(key.device)
            for number in range(self.spec.num_random):
                shown = shown | (drawn[head, of_query, number] == of_key)
        return shown

    def times(self, query: Tensor, key: Tensor, length: Tensor) -> Tensor:
        """Return the multiplicity of visible keys in documents of `length` tokens."""
        size = self.spec.block_size
        block, last = query // size, (length - 1) // size
        repeated = (key // size == 0) & (block > 0) & (block < last) & (length > self.shortest)
        return torch.where(repeated, 1 + self.spec.num_random, 1)

    def drawn(self, num_blocks: int) -> Tensor:
        """Return the random blocks of at least `num_blocks` blocks, [heads, blocks, num_random]."""
        if self._drawn.shape[1] < num_blocks:
            self._drawn = _drawn_blocks(
                max(16, 2 * num_blocks), self.num_heads, self.spec.num_random, self.layer - 1
            )
        return self._drawn

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        size = self.spec.block_size
        end = (length - 1) // size
        if length <= self.shortest or first < size or last // size == end:
            return [(0, length)]
        near = ((first // size - 1) * size, min((last // size + 2) * size, length))
        # Random blocks are among the first 2 r + 4, and no head sees all of these.
        few = 2 * self.spec.num_random + 4 if self.spec.differs_by_head else 1
        return united([(0, few * size), near, (end * size, length)])

    def pairs(self, length: int) -> int:
        if length <= self.shortest:
            return length**2
        size, last = self.spec.block_size, (length - 1) // self.spec.block_size
        rest = length - last * size
        # A middle block sees three neighbours and the first, last and random blocks. The second and the second to last
        # block are neighbours of the outer blocks, so they see one block fewer.
        seen = (4 + self.spec.num_random * self.spec.differs_by_head) * size + rest
        return (size + rest) * length + (last - 1) * size * seen - 2 * size**2


def _drawn_blocks(num_blocks: int, num_heads: int, number: int, seed: int) -> Tensor:
    """Draw the random blocks of the published code, [heads, blocks, number]."""
    import numpy as np

    generator, candidates = np.random.RandomState(seed), 2 * number + 5
    drawn = torch.zeros(num_heads, num_blocks, number, dtype=torch.long)
    for block in range(1, num_blocks):
        seen = {0, block - 1, block, block + 1, candidates - 1}
        seen |= {candidates - 2} if block == 1 else {1} if block == candidates - 2 else set()
        for head in range(num_heads):
            order = generator.permutation(np.arange(candidates, dtype=np.int32))
            unseen = [int(one) for one in order if int(one) not in seen]
            drawn[head, block] = torch.tensor(unseen[:number])
    return drawn
