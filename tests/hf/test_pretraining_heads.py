"""The second heads of BERT and ALBERT, which judge pairs of segments: both ways, beside the published classes."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from archwright import hf
from archwright.hf.configs import read_config
from archwright.hf.loading import tensors_of
from archwright.training.step import sequence_nats
from tests.hf.library import ENTRIES, batch, randomise, reopen, save, transformers

CLASSES = {"bert": "BertForPreTraining", "albert": "AlbertForPreTraining"}
LOGITS = {"bert": "seq_relationship_logits", "albert": "sop_logits"}
LABEL = {"bert": "next_sentence_label", "albert": "sentence_order_label"}


def made(name: str) -> torch.nn.Module:
    config = transformers.AutoConfig.for_model(name, **ENTRIES[name]["kwargs"])
    torch.manual_seed(0)
    return randomise(getattr(transformers, CLASSES[name])(config).eval())


@pytest.mark.parametrize("name", CLASSES)
def test_both_heads_are_those_of_the_published_class(name: str, tmp_path: Path) -> None:
    theirs = made(name)
    ours = hf.load(save(theirs, tmp_path / "in"))
    tokens, real = batch(theirs)
    types = (torch.arange(tokens.shape[1]) > 20).long().expand_as(tokens)
    labels, judged = tokens.masked_fill(~real, -100), torch.tensor([1, 0])
    given = {"input_ids": tokens, "attention_mask": real.long(), "token_type_ids": types}
    out = theirs(**given, labels=labels, **{LABEL[name]: judged})
    own = ours.model(tokens, padding_mask=real, token_type_ids=types)
    near = {"atol": 2e-5, "rtol": 1e-5}
    torch.testing.assert_close(own.logits[real], out.prediction_logits[real], **near)
    torch.testing.assert_close(own.sequence_logits, out[LOGITS[name]], **near)
    with torch.no_grad():  # types are read
        without = theirs(**given | {"token_type_ids": types * 0}).prediction_logits
    assert float((out.prediction_logits - without).detach().abs().max()) > 0.1

    out.loss.backward()
    loss = (
        F.cross_entropy(own.logits[real], tokens[real])
        + sequence_nats(own.sequence_logits, judged).mean()
    )
    loss.backward()
    torch.testing.assert_close(loss, out.loss, atol=1e-5, rtol=1e-5)
    named = dict(theirs.named_parameters())
    family = hf.FAMILIES[name]
    for foreign, slot in family.slots(ours.spec, tensors_of(ours.model)).items():
        if len(slot.ours) == 1 and foreign in named and named[foreign].grad is not None:
            expected, found = named[foreign].grad, ours.model.get_parameter(slot.ours[0]).grad
            assert found is not None
            assert float((found - expected).norm()) <= 1e-3 * float(expected.norm()) + 1e-6, foreign

    hf.save(ours.model, tmp_path / "out")
    assert read_config(tmp_path / "out")["architectures"] == [CLASSES[name]]
    back, wrong = reopen(tmp_path / "out", theirs)
    assert not wrong
    with torch.no_grad():
        torch.testing.assert_close(back(**given)[LOGITS[name]], out[LOGITS[name]], **near)
    assert hf.verify(tmp_path / "out").agrees


def test_a_pooler_alone_is_left_out(tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model("bert", **ENTRIES["bert"]["kwargs"])
    model = transformers.BertForPreTraining(config)
    folder = save(model, tmp_path)
    from safetensors.torch import load_file, save_file

    kept = {n: t for n, t in load_file(folder / "model.safetensors").items() if "seq_rel" not in n}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert hf.load(folder).spec.sequence_head.is_none
