"""Models as `transformers.PreTrainedModel`, for the trainers of other libraries."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from archwright.checkpoint.weights import write_tensors
from archwright.data.inputs import IGNORE
from archwright.hf.exporting import exportable
from archwright.hf.loading import CAME_FROM, tensors_of
from archwright.hf.saving import save
from archwright.losses import cross_entropy, pop_aux_losses
from archwright.model import Decoder
from archwright.parts.branch import Branch
from archwright.spec.errors import UserError
from archwright.spec.read import to_toml

try:
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast
except ImportError:
    raise UserError(
        "as_pretrained: transformers is not installed; install it with: pip install 'archwright[verify]'"
    ) from None

NO_INPUT = ("use_cache", "return_dict", "cache_position", "logits_to_keep")
"""Further arguments of `forward` that change no value of it here."""


def as_pretrained(model: Decoder) -> ArchwrightForCausalLM:
    """Return a decoder as a `transformers.PreTrainedModel`, which shares its weights.

        from transformers import Trainer
        Trainer(archwright.hf.as_pretrained(model), arguments, train_dataset=texts).train()

    The loss includes the auxiliary losses of routers. After each step of an optimizer of its parameters, branches make
    their updates without gradients, such as the balancing biases of experts; no callback is needed.

    Raises:
        UserError: The model is not a causal decoder with one prediction per token.
    """
    spec = model.spec
    ahead = [pattern.spec.kind for pattern in model.masks.values() if pattern.lookahead != 0]
    if problem := (
        ("an encoder" if spec.encoder_model is not None else "")
        or ("a generator" if spec.generator_model is not None else "")
        or (f"the mask {ahead[0]}, which shows later tokens" if ahead else "")
    ):
        raise UserError(
            f"as_pretrained: found {problem}; expected a causal decoder. archwright.train trains this model"
        )
    return ArchwrightForCausalLM(model)


class ArchwrightConfig(PretrainedConfig):
    """Sizes of a model for trainers; `model.spec` has the architecture."""

    model_type = "archwright"


class ArchwrightForCausalLM(PreTrainedModel, GenerationMixin):
    """A decoder with the interface of causal language models in `transformers`; `as_pretrained` makes it.

    Attributes:
        model: the archwright model.
    """

    # The name ends with ForCausalLM, so that Trainer counts shifted labels.
    config_class = ArchwrightConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _is_stateful = True  # no cache is passed between calls of generate

    def __init__(self, model: Decoder) -> None:
        spec = model.spec
        sizes: dict[str, Any] = {
            "vocab_size": spec.vocab_size,
            "hidden_size": spec.dim,
            "num_hidden_layers": spec.num_layers,
            "max_position_embeddings": spec.context_length,
            "tie_word_embeddings": False,  # the model ties them itself
            "use_cache": False,
            "dtype": next(model.parameters()).dtype,
        }
        super().__init__(ArchwrightConfig(**sizes))
        self.model = model
        self.generation_config.use_cache = False
        self.gradient_checkpointing = False
        self.post_init()  # type: ignore[no-untyped-call]

    def init_weights(self) -> None:
        """Leave the weights as they are."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> Any:
        """Return logits, and a loss if there are labels.

            loss = (nll_sum + num_targets * auxiliary) / num_items_in_batch

        Args:
            input_ids: Tokens [batch, length].
            attention_mask: 1 for real tokens, 0 for padding [batch, length].
            position_ids: Positions [batch, length]. Without `attention_mask`, a row whose positions restart holds
                several documents.
            labels: Tokens [batch, length], shifted here: logits t predict label t + 1; -100 is ignored.
            shift_labels: Labels that are shifted already.
            num_items_in_batch: Targets of all microbatches of a step. Default: the targets of this call.

        Raises:
            UserError: An input that the model does not have.
        """
        used = {k: v for k, v in others.items() if v is not None and v is not False}
        if unknown := [name for name in used if name not in NO_INPUT]:
            raise UserError(
                f"{unknown[0]}: is no input of this model; expected input_ids, attention_mask, position_ids and labels"
            )
        layout = _layout(attention_mask, position_ids)
        logits = self.model(input_ids, **layout).logits
        trains = self.training and torch.is_grad_enabled()
        if trains:
            _await_step(self)
        # Also without labels, because a loss that is not popped would outlive its graph.
        losses = [*pop_aux_losses(self.model).values()]
        auxiliary = torch.stack(losses).sum() if losses else None
        targets, loss = shift_labels, None
        if targets is None and labels is not None:
            targets = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE)
        if targets is not None:
            targets = targets.to(logits.device)
            number = (targets != IGNORE).sum()
            divisor = number.clamp(min=1) if num_items_in_batch is None else num_items_in_batch
            loss = cross_entropy(logits, targets, num_valid=divisor).total
            if auxiliary is not None:
                loss = loss + auxiliary * (number / divisor)
        out = MoeCausalLMOutputWithPast(loss=loss, aux_loss=auxiliary, logits=logits)
        return out.to_tuple() if others.get("return_dict") is False else out

    def after_step(self) -> None:
        """Update what follows no gradient; called by each step of an optimizer after a training pass."""
        branches = [module for module in self.model.modules() if isinstance(module, Branch)]
        if dist.is_available() and dist.is_initialized():
            for branch in branches:
                for name in branch.counts:
                    if (count := getattr(branch, name)) is not None:
                        dist.all_reduce(total := count.clone())
                        setattr(branch, name, total)
        for branch in branches:
            branch.after_step(updated=True)

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | os.PathLike[str], **others: Any
    ) -> None:
        """Write the folder of a published family, as `archwright.hf.save`.

        A model that no family can represent is written as model.safetensors with the names of `state_dict`, next to its
        spec, model.toml. Files of the same name are replaced; `others` is not used.

        Raises:
            UserError: The model has adapters that are not merged.
        """
        if others.get("is_main_process") is False:
            return
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        if any(".base_layer." in name for name in self.model.state_dict()):
            raise UserError(
                f"{folder}: the model has adapters; merge them first: model = peft_model.merge_and_unload()"
            )
        # A trainer's folder may hold other files, so the export is moved into it.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            draft = Path(scratch) / "model"
            if self._slots() is None:
                draft.mkdir()
                tensors = {f"model.{k}": v.contiguous() for k, v in tensors_of(self.model).items()}
                write_tensors(draft / "model.safetensors", tensors, {"format": "pt"})
                (draft / "model.toml").write_text(to_toml(self.model.spec), "utf-8")
            else:
                save(self.model, draft)
            for file in draft.iterdir():
                file.replace(folder / file.name)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights by the names of `state_dict` or of an exported folder, as trainers do to resume."""
        slots = self._slots()
        if slots is None or not state_dict.keys() <= slots.keys():
            return super().load_state_dict(state_dict, strict, assign)
        tensors = tensors_of(self.model)
        with torch.no_grad():
            for name, value in state_dict.items():
                slots[name].read(value, tensors)
        missing = [name for name in slots if name not in state_dict]
        if missing and strict:
            raise UserError(f"{missing[0]}: missing in the state dict of this model")
        return nn.modules.module._IncompatibleKeys(missing, [])

    def _slots(self) -> Any:
        """Return the tensors of the exported folder by name; None if no family can represent the model."""
        origin = CAME_FROM.get(self.model)
        try:
            family = exportable(self.model.spec, origin.family if origin else "")
        except UserError:
            return None
        return family.slots(self.model.spec, tensors_of(self.model))

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.gradient_checkpointing

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        """Recompute the activations of layers in the backward pass."""
        self.model.checkpoint_activations("full")
        self.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        """Store all activations."""
        self.model.checkpoint_activations("none")
        self.gradient_checkpointing = False

    def get_input_embeddings(self) -> nn.Module:
        embedding: nn.Module = self.model.embedding
        return embedding

    def get_output_embeddings(self) -> nn.Module:
        head: nn.Module = self.model.head
        return head


def _layout(attention_mask: Tensor | None, position_ids: Tensor | None) -> dict[str, Tensor]:
    """Return the arguments of a model for a mask and positions."""
    layout = {} if position_ids is None else {"position_ids": position_ids}
    if attention_mask is not None:
        if attention_mask.ndim != 2:
            raise UserError(
                f"attention_mask: found shape {[*attention_mask.shape]}; expected [batch, length]"
            )
        # Kernels are faster without a mask.
        return layout if attention_mask.all() else layout | {"padding_mask": attention_mask.bool()}
    if position_ids is not None:
        # [batch, length]
        documents = (position_ids.diff(dim=-1, prepend=position_ids[..., :1]) < 0).cumsum(-1)
        if documents.any():
            layout["segment_ids"] = documents
    return layout


_TRAINED: WeakSet[ArchwrightForCausalLM] = WeakSet()
"""Models with a training pass since the last step of their optimizer."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _await_step(model: ArchwrightForCausalLM) -> None:
    _TRAINED.add(model)


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Update the models whose parameters an optimizer has just updated, once for several optimizers."""
    stepped = (
        {id(p) for group in optimizer.param_groups for p in group["params"]} if _TRAINED else ()
    )
    for model in [*_TRAINED]:
        if any(id(p) in stepped for p in model.parameters()):
            _TRAINED.discard(model)
            model.after_step()


# Of all optimizers: a hook cannot be forgotten, and a microbatch or a recomputed layer is no step.
register_optimizer_step_post_hook(_after_step)
