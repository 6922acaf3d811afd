"""Numbers that a forward pass leaves for the backward pass, and how devices share them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

from archwright.model.language_model import LanguageModel
from archwright.model.layer import Layer
from archwright.parts.linear import Linear
from archwright.parts.mixers import AttentionMixer
from archwright.planning.splits import blocks_of, share
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import ActivationCheckpointing

CHECKPOINTING: tuple[ActivationCheckpointing, ...] = get_args(ActivationCheckpointing)
"""What is computed again in the backward pass, as `machine.activation_checkpointing` says: nothing; all but products
with weights and attention; all of a layer."""
STREAM = 0
"""Stands in place of blocks where numbers are those of the stream: devices share them by tokens, or each has all."""
WHOLE = 1
"""Of one block each device has all."""
Values = Mapping[int, float]
"""Numbers per token by the blocks that devices share them by, such as heads; see `STREAM`."""


def layers_of(model: LanguageModel) -> Iterator[tuple[Layer, ModelSpec]]:
    """Yield each layer with the model that it belongs to: an encoder and a generator are models of their own."""
    decoder = {*model.stack}
    beside = model.spec.encoder_model or model.spec.generator_model or model.spec
    for layer in model.all_layers:
        yield layer, model.spec if layer in decoder else beside


def activations(
    layers: Sequence[tuple[Layer, ModelSpec]],
    length: int,
    checkpointing: str,
    target_length: int | None = None,
) -> tuple[Values, Values]:
    """Return the activations per token that layers keep, and the most that one layer recomputes.

    With two stacks, per token of the source; its target is as long unless a length is given. The kernel keeps no
    scores, and norms, activations and gates are fused. `checkpointing` keeps:

        none        inputs of norms and branches, results of projections, and inputs of projections that write into
                    the stream: 32 bytes * dim in 16 bits for a layer of GPT (Korthikanti et al., 2022, section 4.1,
                    without scores and dropout)
        selective   inputs of layers, and results of their projections and of attention: 22 bytes * dim for a layer
                    of GPT; one layer recomputes the rest
        full        inputs of layers; one layer recomputes the rest

    Reversible layers keep the output of the last layer, and one layer is recomputed, for every value.
    """
    specs = {id(spec): spec for _, spec in layers}.values()
    ends = sum(
        2 * spec.dim * spec.vectors_per_token for spec in specs if spec.residual.is_reversible
    )
    kept: list[Values] = [{STREAM: ends}]
    again: Values = {}
    for layer, spec in layers:
        is_reversible = spec.residual.is_reversible
        # A spec with an encoder is that of the decoder beside it.
        text = length if spec.encoder_model is None else target_length or length
        longer = text + spec.global_tokens
        times = spec.vectors_per_token * longer / length  # of numbers for each token of the text
        values = layer_values(layer, spec.dim, longer, length)
        own, others = values.under("full" if is_reversible else checkpointing)
        kept.append({} if is_reversible else _scaled(own, times))
        again = max(again, _scaled(others, times), key=amount)
    return added(kept), again


def _scaled(values: Values, times: float) -> Values:
    return {blocks: number * times for blocks, number in values.items()}


class LayerValues(NamedTuple):
    """Numbers per token that a layer has while it is computed."""

    entering: Values
    results: Values
    """Of attention, and of maps inside branches."""
    written: Values
    """Results of maps that write into the stream."""
    needed: Values
    """Those of them that are not only summed: norms, or weights of experts, stand behind."""
    others: Values
    """What norms, activations and gates give."""
    provided: Values
    """Values for later layers, most of them among the results, too."""

    def under(self, checkpointing: str) -> tuple[Values, Values]:
        """Return what is kept until the backward pass, and what is there while the layer is computed again."""
        everything = added((self.entering, self.results, self.needed, self.others))
        if checkpointing == "none":
            return everything, {}
        if checkpointing == "full":
            return added((self.entering, self.provided)), everything
        return added((self.entering, self.results, self.written)), self.others


def layer_values(layer: Layer, dim: int, length: int, source_length: int) -> LayerValues:
    """Return the numbers per token that a layer has while it is computed."""
    results, written, needed, others = (defaultdict[int, float](float) for _ in range(4))
    mixers, wiring = layer.mixers(), layer.residual.costs(layer.groups)
    streams = layer.residual.streams
    # The first of what enters norms is what enters the layer.
    others[STREAM] += ((wiring.entering - 1) * streams + wiring.normed) * dim
    needed[STREAM] += wiring.behind * dim
    for name in layer.branches:
        branch, mixer = layer.branch(name), mixers.get(name)
        heads = mixer.num_heads if isinstance(mixer, AttentionMixer) else STREAM
        of_maps = branch.kept_results_per_token(length)
        results[heads] += of_maps
        others[heads] += branch.kept_values_per_token(length) - of_maps
        blocks = mixer.normed_blocks if isinstance(mixer, AttentionMixer) else STREAM
        others[blocks] += branch.recomputable_per_token
        needed[WHOLE] += branch.needed_outputs_per_token
        for module in branch.modules():
            if not isinstance(module, Linear):
                continue
            # Of experts, those that a token goes through.
            times = module.active_fraction * module.weight.numel() / (module.d_in * module.d_out)
            times *= source_length / length if module in branch.source_maps else 1
            # Each device makes what is not shared of its own tokens, as the stream is.
            blocks = STREAM if module.num_blocks == 1 else blocks_of(module)
            if not module.is_residual_output:
                results[blocks] += times * module.d_out
                continue
            (others if mixer is None else results)[blocks] += times * module.d_in
            # Where it is shared by rows, each device has a part of the sum for all tokens.
            written[min(blocks, WHOLE)] += times * module.d_out
    provided = {STREAM: float(sum(layer.provides.values()))}
    return LayerValues({STREAM: streams * dim}, results, written, needed, others, provided)


def added(values: Iterable[Values]) -> Values:
    """Return sums of numbers by their blocks."""
    sums: dict[int, float] = defaultdict(float)
    for each in values:
        for blocks, number in each.items():
            sums[blocks] += number
    return sums


def amount(values: Values) -> float:
    """Return how many numbers there are in all."""
    return float(sum(values.values()))


def on_a_device(values: Values, tensor: int, *, sequence: bool) -> float:
    """Return the numbers per token of one of the devices that share a layer.

    Without sequence parallelism each has the stream; of a layer of GPT that makes s b h (8 + 24 / t) bytes, and with it
    32 s b h / t (Korthikanti et al., 2022, equations 2 and 4, without scores and dropout).
    """
    stream = 1 / tensor if sequence else 1.0
    return sum(
        number * (stream if blocks == STREAM else share(blocks, tensor))
        for blocks, number in values.items()
    )
