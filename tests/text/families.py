"""Tokenizers in the layouts of published families, trained on one small text."""

from collections.abc import Callable
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = (
    "The cat's mat isn't flat: 12 rats, 345 bats (and hats) sat there. Is that so? A\n"
    "def f(x):\n    return x + 1  # it's <b>1</b> [a] {s} e/n\n"
) * 3


@dataclass(frozen=True)
class Family:
    """A tokenizer, its special tokens, and whether it gives back `TEXT`."""

    inner: tokenizers.Tokenizer
    end: str
    special: tuple[str, ...]
    lossless: bool = False


def _train(
    inner: tokenizers.Tokenizer, trainer: trainers.Trainer, around: str, special: tuple[str, ...]
) -> tokenizers.Tokenizer:
    inner.train_from_iterator([TEXT], trainer)
    inner.add_special_tokens([s for s in special if s != "<extra_id_0>"])
    names = [name for name in around.split() if name != "$A"]
    if names:
        ids = [(name, inner.token_to_id(name)) for name in names]
        inner.post_processor = processors.TemplateProcessing(single=around, special_tokens=ids)
    return inner


def _unigram(
    around: str,
    *special: str,
    unk: str,
    normalizer: normalizers.Normalizer | None = None,
    split: bool = False,
    lossless: bool = False,
) -> Family:
    """SentencePiece's unigram model; special tokens are its first pieces, with a score of 0."""
    inner = tokenizers.Tokenizer(models.Unigram())
    if normalizer is not None:
        inner.normalizer = normalizer
    metaspace = pre_tokenizers.Metaspace()
    splits = [pre_tokenizers.WhitespaceSplit(), metaspace]
    inner.pre_tokenizer = pre_tokenizers.Sequence(splits) if split else metaspace
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=list(special), unk_token=unk, show_progress=False
    )
    end = around.split()[-1]
    return Family(_train(inner, trainer, around, special), end, special, lossless)


def _wordpiece() -> Family:
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=list(special), show_progress=False
    )
    return Family(_train(inner, trainer, "[CLS] $A [SEP]", special), "[SEP]", special)


def _bpe(around: str, *special: str, llama_3: bool = False) -> Family:
    """GPT-2's or Llama 3's BPE of bytes."""
    inner = tokenizers.Tokenizer(models.BPE(ignore_merges=llama_3))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return Family(_train(inner, trainer, around, special), special[-1], special, lossless=True)


def _sentencepiece_bpe(around: str, *special: str, prepends: bool) -> Family:
    """Llama 2's BPE of characters, with bytes for unknown ones, or Gemma's, which puts no blank before a text."""
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    inner.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prepends else replace
    )
    if not prepends:
        inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * prepends)
    content = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=content, show_progress=False)
    inner.train_from_iterator([TEXT], trainer)
    fresh = tokenizers.Tokenizer(inner.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if (step := getattr(inner, part)) is not None:
            setattr(fresh, part, step)
    fresh.add_special_tokens(list(special))
    names = [(name, fresh.token_to_id(name)) for name in around.split() if name != "$A"]
    fresh.post_processor = processors.TemplateProcessing(single=around, special_tokens=names)
    return Family(fresh, special[2], special, lossless=True)


def _quotes(*steps: normalizers.Normalizer) -> normalizers.Normalizer:
    replaced = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    return normalizers.Sequence([*replaced, *steps])


FAMILIES: dict[str, Callable[[], Family]] = {
    "t5": lambda: _unigram(
        "$A </s>", "<pad>", "</s>", "<unk>", "<extra_id_0>",
        unk="<unk>", normalizer=normalizers.NFKC(), split=True,
    ),
    "mt5": lambda: _unigram("$A </s>", "<pad>", "</s>", "<unk>", unk="<unk>", lossless=True),
    "xlm-roberta": lambda: _unigram(
        "<s> $A </s>", "<s>", "<pad>", "</s>", "<unk>", "<mask>", unk="<unk>",
        normalizer=normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
    ),
    "albert": lambda: _unigram(
        "[CLS] $A [SEP]", "<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", unk="<unk>",
        normalizer=_quotes(normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()),
    ),
    "deberta-v3": lambda: _unigram(
        "[CLS] $A [SEP]", "[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", unk="[UNK]",
        normalizer=normalizers.Sequence([normalizers.Strip(), normalizers.NFC()]),
    ),
    "pegasus": lambda: _unigram(
        "$A </s>", "<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk_2>", "<unk>",
        unk="<unk>", normalizer=normalizers.Nmt(),
    ),
    "bert": _wordpiece,
    "gpt2": lambda: _bpe("$A", "<|endoftext|>"),
    "llama-3": lambda: _bpe(
        "<|begin_of_text|> $A", "<|begin_of_text|>", "<|end_of_text|>", llama_3=True
    ),
    "llama-2": lambda: _sentencepiece_bpe("<s> $A", "<unk>", "<s>", "</s>", prepends=True),
    "gemma": lambda: _sentencepiece_bpe("<bos> $A", "<unk>", "<pad>", "<eos>", "<bos>", prepends=False),
}  # fmt: skip
