"""What an instruct folder says beside its weights goes in and comes out: chat templates, tokens, defaults."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors

from archwright import hf
from archwright.cli import main
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.read import load_run
from archwright.training.data import prepare_data
from tests.hf.library import OUTSIDE, build, randomise, save

transformers = pytest.importorskip("transformers")

SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<|user|>", "<|eot|>", "<|assistant|>"]
ENDS = [SPECIAL.index("</s>"), SPECIAL.index("<|eot|>")]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CHAT = [
    {"role": "user", "content": " What is the capital of Perú? "},
    {"role": "assistant", "content": "Lima."},
    {"role": "user", "content": "¿Y 北京?"},
]
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 40}


def vocabulary() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(
        models.BPE({t: i for i, t in enumerate(SPECIAL + alphabet)}, [], unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", SPECIAL.index("<s>"))]
    )
    return inner


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instruct model as it is published."""
    folder = tmp_path_factory.mktemp("original") / "instruct"
    ids = {"bos_token_id": 1, "eos_token_id": ENDS, "pad_token_id": 3}
    model = randomise(build("llama", vocab_size=320, **ids))
    more = {**SAMPLING, "repetition_penalty": 1.1, "max_length": 77}
    model.generation_config = transformers.GenerationConfig(**ids, **more)
    save(model, folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=vocabulary(),
        chat_template=TEMPLATE,
        model_max_length=1234,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=["<|user|>", "<|eot|>", "<|assistant|>"],
    ).save_pretrained(folder)
    return folder


def copied(original: Path, folder: Path) -> Path:
    """Return a copy of a folder."""
    return Path(shutil.copytree(original, folder))


def beside(folder: Path) -> dict[str, Any]:
    """Return all that the library finds beside the weights."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    chats = [
        tokenizer.apply_chat_template(CHAT, tokenize=tokenize, add_generation_prompt=prompt)
        for tokenize in (False, True)
        for prompt in (False, True)
    ]
    config = json.loads((folder / "config.json").read_text("utf-8"))
    generation = transformers.GenerationConfig.from_pretrained(folder).to_dict()
    return {
        "chats": [dict(c) if hasattr(c, "items") else c for c in chats],
        "tokens": tokenizer.special_tokens_map,
        "ids": tokenizer("¿Y 北京?").input_ids,
        "longest": tokenizer.model_max_length,
        "config": {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "generation": {k: v for k, v in generation.items() if k != "transformers_version"},
    }


def test_what_is_said_goes_in_and_comes_out(original: Path, tmp_path: Path) -> None:
    before = beside(original)
    assert before["chats"][1].endswith("<|eot|>\n<|assistant|>\n")
    hf.import_run(original, tmp_path / "run")
    hf.export_run(tmp_path / "run", tmp_path / "out")
    assert beside(tmp_path / "out") == before
    assert before["config"]["eos_token_id"] == ENDS
    assert not (tmp_path / "out" / "token_ids.json").exists()


def test_in_memory_as_well(original: Path, tmp_path: Path) -> None:
    loaded = hf.load(original)
    hf.save(loaded.model, tmp_path / "out", loaded.tokenizer)
    assert beside(tmp_path / "out") == beside(original)


def test_a_run_that_goes_on_from_it_says_the_same(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "cache"))
    imported, _ = hf.import_run(original, tmp_path / "run")
    (tmp_path / "notes.txt").write_text("\n".join(f"{i} is even." for i in range(0, 4000, 2)))
    onwards = load_run(imported.path).override(f'data.text="{tmp_path / "notes.txt"}"')
    folder = RunFolder.create(tmp_path / "onwards", onwards)
    prepare_data(onwards, folder)
    shutil.copy(imported.model_file, folder.model_file)
    hf.export_run(folder.path, tmp_path / "out")
    assert beside(tmp_path / "out") == beside(original)


def test_writing_ends_at_any_of_the_ends_and_samples_as_the_checkpoint_says(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from archwright.generation import writing

    seen: dict[str, Any] = {}

    def sample(model: object, prompt: torch.Tensor, **settings: Any) -> Iterator[int]:
        seen.update(settings)
        return iter([])

    monkeypatch.setattr(writing, "sample", sample)
    hf.import_run(original, tmp_path / "run")
    assert main(["generate", str(tmp_path / "run"), "--top-k", "3"]) == 0
    assert seen["stop"] == {1, *ENDS}
    assert (seen["temperature"], seen["top_k"], seen["top_p"]) == (0.6, 3, 0.9)


def test_without_a_tokenizer_ids_are_those_that_were_there(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).write_bytes((original / name).read_bytes())
    hf.import_run(folder, tmp_path / "run")
    hf.export_run(tmp_path / "run", tmp_path / "out")
    hf.save(hf.load(folder).model, tmp_path / "memory")
    for out in (tmp_path / "out", tmp_path / "memory"):
        for name in ("config.json", "generation_config.json"):
            before, after = (json.loads((f / name).read_text("utf-8")) for f in (original, out))
            assert {k: after.get(k) for k in before if k.endswith("_id")} == {
                k: v for k, v in before.items() if k.endswith("_id")
            }


@pytest.mark.parametrize("name", sorted({*hf.FAMILIES} - OUTSIDE))
def test_padding_that_a_class_takes_for_given_is_known_where_a_vocabulary_may_lack_it(
    name: str,
) -> None:
    padding = getattr(transformers.AutoConfig.for_model(name), "pad_token_id", None)
    assert padding is None or padding < 60 or hf.FAMILIES[name].defaults["pad_token_id"] == padding


def test_a_model_of_ones_own_has_no_null_ids_and_none_that_stops_it(tmp_path: Path) -> None:
    from archwright.model.build import build as built
    from archwright.spec.read import load

    hf.save(
        built(load("modern").override("dim=16", "num_layers=1", "vocab_size=64")), tmp_path / "o"
    )
    for name in ("config.json", "generation_config.json"):
        said = json.loads((tmp_path / "o" / name).read_text("utf-8"))
        assert not [key for key in said if key.endswith("_token_id")]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "o")
    assert model.generation_config.eos_token_id is None


DAMAGES: dict[str, tuple[Callable[[str], bytes], str]] = {
    "nesting": (lambda text: b'{"a": ' + b"[" * 50_000, "not JSON"),
    "giant": (lambda text: b'{"a": ' + b"9" * 5000 + b"}", "not JSON: Exceeds the limit"),
    "nan": (lambda text: b'{"a": NaN}', "not JSON: NaN is not a JSON number"),
    "infinity": (lambda text: b'{"a": -Infinity}', "not JSON: -Infinity is not a JSON number"),
    "latin-1": (lambda text: b'{"a": "\xe9"}', "not UTF-8 at byte 7"),
    "twice": (lambda text: b'{"a": 1, "a": 2}', '"a" appears twice'),
    "list": (lambda text: b"[1]", "found list; expected a JSON object"),
    "cut": (lambda text: text.encode()[:-3], "not JSON"),
}
FILES = ("config.json", "generation_config.json", "tokenizer_config.json")


@pytest.mark.parametrize(
    "name", [*FILES, "model.safetensors.index.json", "special_tokens_map.json"]
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line(
    name: str, damage: str, original: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for path in original.iterdir():
        if path.name != "model.safetensors" or "index" not in name:
            shutil.copy(path, folder)
    (folder / name).unlink(missing_ok=True)
    change, said = DAMAGES[damage]
    text = (original / name).read_text("utf-8") if (original / name).exists() else '{"a": 1}'
    (folder / name).write_bytes(change(text))
    with pytest.raises(UserError) as refused:
        hf.load(folder)
    assert len(refused.value.lines) == 1
    assert said in str(refused.value)
    assert f"{folder / name}: " in str(refused.value)


@pytest.mark.parametrize("wrong", [[2, "</s>"], -1, 2**40, {"a": 1}, [[2]], True, "2"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_what_is_no_id_is_refused(name: str, wrong: Any, original: Path, tmp_path: Path) -> None:
    folder = copied(original, tmp_path / "in")
    table = json.loads((original / name).read_text("utf-8")) | {"eos_token_id": wrong}
    (folder / name).unlink()
    (folder / name).write_text(json.dumps(table), "utf-8")
    with pytest.raises(UserError, match=r"eos_token_id: found .*; expected a token id"):
        hf.load(folder)


def test_code_of_a_tokenizer_is_left_behind(original: Path, tmp_path: Path) -> None:
    folder = copied(original, tmp_path / "in")
    table = json.loads((original / "tokenizer_config.json").read_text("utf-8"))
    (folder / "tokenizer_config.json").unlink()
    table |= {"auto_map": {"AutoTokenizer": ["code.T", None]}, "tokenizer_class": "T"}
    (folder / "tokenizer_config.json").write_text(json.dumps(table), "utf-8")
    loaded = hf.load(folder)
    hf.save(loaded.model, tmp_path / "out", loaded.tokenizer)
    found = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text("utf-8"))
    assert "auto_map" not in found
    assert found["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert beside(tmp_path / "out")["chats"] == beside(original)["chats"]
