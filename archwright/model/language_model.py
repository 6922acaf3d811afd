"""The interface of models that all other rooms use."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.model.cache import Cache
from archwright.model.layer import Layer
from archwright.parts.embeddings import Head
from archwright.parts.linear import Linear
from archwright.parts.masks import MaskPattern
from archwright.parts.mixers import Mixer
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import ActivationCheckpointing


@dataclass(frozen=True)
class Output:
    """Model outputs."""

    logits: Float[Tensor, "batch length vocab"]
    """Unnormalised log-probabilities of each token of the vocabulary; of a head that finds replaced tokens, one: the
    log-odds that the token is one of these."""
    sequence_logits: Float[Tensor, "batch classes"] | None = None
    """Those of what each row is as a whole; None where the model has no head for that."""
    further_logits: Float[Tensor, "further batch length vocab"] | None = None
    """Of further predicting streams, in order, each of the same tokens as the logits, from one token less of the text;
    None where there are none, and behind a cache."""
    replaced_logits: Float[Tensor, "batch length"] | None = None
    """Beside a generator, whose are the logits above: the log-odds that each token was replaced."""
    read: Int[Tensor, "batch length"] | None = None
    """The tokens that these are of."""


class LanguageModel(nn.Module, ABC):
    """A stack of layers that reads tokens, and a head that gives logits; `archwright.build` makes one from a spec.

    `forward` and `hidden` take tokens and, by their names, the other inputs of a batch (`archwright.data.inputs`) and
    a cache. They are no protocol, as a protocol cannot ask for a module.
    """

    spec: ModelSpec
    layers: nn.ModuleList
    norm: nn.Module
    head: Head
    sequence_head: nn.Module | None
    """Judges rows as a whole; None where tokens alone are predicted."""
    masks: Mapping[str, MaskPattern]
    lr_scales: Mapping[str, float]
    """Factors of the learning rate by role of parameter, where they are not 1."""
    forward: Callable[..., Output]
    """Returns the logits at each token."""
    hidden: Callable[..., Tensor]
    """Returns what the head reads, [batch, length, dim]; of further predicting streams as well, behind each other."""

    def sequence_logits(
        self,
        hidden: Float[Tensor, "batch read dim"],
        padding_mask: Bool[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch classes"] | None:
        """Return what `sequence_head` makes of the first real token of each row; None where there is no such head."""
        if self.sequence_head is None:
            return None
        if padding_mask is None:
            first = hidden[:, 0]
        else:
            at = padding_mask.long().argmax(-1)
            first = hidden[torch.arange(len(hidden), device=hidden.device), at]  # [batch, dim]
        logits: Tensor = self.sequence_head(first)
        return logits

    @abstractmethod
    def new_cache(self) -> Cache:
        """Return an empty cache, to be given to `forward`."""

    @property
    @abstractmethod
    def can_cache(self) -> bool:
        """Whether every mixer keeps what it has read."""

    @property
    @abstractmethod
    def can_generate_indefinitely(self) -> bool:
        """Whether a text may go on for ever."""

    @property
    @abstractmethod
    def switch_lengths(self) -> tuple[int, ...]:
        """Lengths of a text beyond which what was read of it must be read again."""

    @abstractmethod
    def mixers(self) -> Iterator[Mixer]:
        """Yield all branches in which tokens exchange information, layer by layer."""

    @property
    @abstractmethod
    def stack(self) -> Iterator[Layer]:
        """Yield the layers in order, as what they are."""

    @property
    def source_maps(self) -> Iterator[Linear]:
        """Yield the maps that read tokens of a source, not those of the decoder's text."""
        yield from ()

    @property
    def shared_maps(self) -> Iterator[Linear]:
        """Yield the maps that read both, the tokens of a source and those of the decoder's text."""
        yield from ()

    @property
    @abstractmethod
    def all_layers(self) -> Iterator[Layer]:
        """Yield the layers of all stacks, those of an encoder first."""

    @abstractmethod
    def use_kernel(self, name: str) -> "LanguageModel":
        """Compute attention with one of the kernels: eager (the reference), sdpa, blockwise, flex."""

    @abstractmethod
    def checkpoint_activations(self, what: ActivationCheckpointing = "full") -> "LanguageModel":
        """Keep less of each layer for the backward pass, which computes the rest again, as
        `machine.activation_checkpointing` says."""

    def num_parameters(self) -> int:
        """Return the number of parameters; a tied table counts once."""
        return sum(p.numel() for p in self.parameters())
