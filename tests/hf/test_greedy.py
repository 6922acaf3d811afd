"""Greedy text of every family beside that of its published implementation, in batches padded on the left."""

from pathlib import Path
from typing import Any

import pytest
import torch

from archwright import hf
from archwright.generation.reader import Reader, can_pad
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.parts.mixers import RecurrentMixer
from tests.hf.library import ENTRIES, OUTSIDE, build, randomise, save
from tests.hf.test_parity import REFUSED

QUICK = ("llama", "gpt2", "gemma2", "qwen3", "mistral")
LENGTHS = (5, 9)
NUMBER = 128
CLOSE = 1e-4
"""Difference of the two best logits below which rounding may choose."""
UNCACHED = {"mamba2_clamped", "nemotron_h"}
"""Families whose cached steps are not compared, but the library's whole passes."""
OTHERWISE = {"roberta_lm"}
"""Families whose `generate` differs from the library's own forward pass, by 3 in some logits; ours is that pass."""


def marked(name: str) -> Any:
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "name", [marked(n) for n in ENTRIES if n not in {*REFUSED, *OUTSIDE, *OTHERWISE}]
)
@torch.inference_mode()
def test_greedy_text_is_that_of_the_library(name: str, tmp_path: Path) -> None:
    theirs: Any = randomise(build(name))
    if "task" in ENTRIES[name] or theirs.config.is_encoder_decoder:
        pytest.skip("reads whole texts, or has a source")
    ours = hf.load(save(theirs, tmp_path)).model.eval()
    sees_later = any(mask.lookahead != 0 for mask in ours.masks.values())
    if isinstance(ours, EncoderDecoder) or not ours.can_cache or sees_later or not can_pad(ours):
        pytest.skip("keeps no cache of padded texts")
    # Some recurrences of the library read the padding too.
    recurs = any(isinstance(mixer, RecurrentMixer) for mixer in ours.mixers())
    lengths = (9, 9) if recurs else LENGTHS
    longest, limit = max(lengths), ours.spec.context_length
    number = min(NUMBER, limit - longest)
    generator = torch.Generator().manual_seed(2)
    prompts = [
        torch.randint(4, theirs.config.vocab_size, (n,), generator=generator) for n in lengths
    ]
    padded = torch.full((len(lengths), longest), theirs.config.pad_token_id or 3)
    real = torch.zeros_like(padded)
    for row, text in enumerate(prompts):
        padded[row, longest - len(text) :], real[row, longest - len(text) :] = text, 1
    found = theirs.generate(
        padded,
        attention_mask=real,
        do_sample=False,
        max_new_tokens=number,
        min_new_tokens=number,
        pad_token_id=0,
        eos_token_id=None,
        use_cache=name not in UNCACHED,
        return_dict_in_generate=True,
        output_logits=True,
    )
    new = found.sequences[:, longest:]
    reader, compared = Reader(ours), [0] * len(lengths)
    logits = reader.read_prompts(prompts)
    live = set(range(len(lengths)))
    for step in range(number):
        best = found.logits[step].float().topk(2).values
        live -= {row for row in live if best[row, 0] - best[row, 1] < CLOSE}
        for row in live:
            assert int(logits[row].argmax()) == int(new[row, step]), (row, step)
            compared[row] += 1
        if not live or step + 1 == number:
            break
        logits = reader.read_rows(new[:, step : step + 1])
    assert max(compared) > min(number, 8) - 1
