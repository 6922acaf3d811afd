import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from archwright.checkpoint import (
    DamagedError,
    Opened,
    load_model,
    read_metadata,
    read_model,
    take_weights,
    weights,
    write_model,
)
from archwright.spec.errors import UserError


class Small(nn.Module):
    def __init__(
        self, vocab: int = 10, dim: int = 4, tied: bool = True, extra: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        if extra:
            self.new = nn.Linear(1, 1)


def header(path: Path) -> dict:
    """Read the names in a safetensors file by the format's definition."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


def test_model_file(tmp_path: Path) -> None:
    model = Small().bfloat16()
    path = tmp_path / "new" / "model.safetensors"
    write_model(path, model, {"spec": "dim = 4\n", "é": "ü"})
    assert set(header(path)) == {"__metadata__", "embedding.weight", "norm.weight", "norm.bias"}
    assert header(path)["__metadata__"]["format"] == "pt"
    assert read_metadata(path) == {"spec": "dim = 4\n", "é": "ü"}
    tensors = read_model(path)
    assert tensors.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert tensors[name].dtype == torch.bfloat16
        assert tensors[name].equal(tensor)
    fresh = Small().bfloat16()
    fresh.load_state_dict(tensors)
    assert fresh.head.weight.equal(model.embedding.weight)
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]


def test_other_programs_read_it_and_we_read_theirs(tmp_path: Path) -> None:
    model = Small(tied=False)
    write_model(tmp_path / "ours", model, {})
    theirs = load_file(tmp_path / "ours")
    assert all(theirs[name].equal(tensor) for name, tensor in model.state_dict().items())
    save_file({"x": torch.ones(2)}, tmp_path / "theirs")
    assert read_model(tmp_path / "theirs")["x"].tolist() == [1, 1]
    assert read_metadata(tmp_path / "theirs") == {}


def test_views_of_one_memory_are_written_apart(tmp_path: Path) -> None:
    model = nn.Module()
    whole = torch.arange(12.0).view(3, 4)
    for name, tensor in {
        "whole": whole,
        "turned": whole.T,
        "row": whole[1],
        "column": whole[:, 1],
        "flat": whole.view(-1),
    }.items():
        model.register_buffer(name, tensor)
    write_model(tmp_path / "m", model, {})
    tensors = read_model(tmp_path / "m")
    assert tensors["turned"].tolist() == whole.T.tolist()
    assert tensors["row"].tolist() == [4, 5, 6, 7]
    assert tensors["column"].tolist() == [1, 5, 9]
    assert tensors["flat"].tolist() == list(range(12))


def test_a_model_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    write_model(path, Small(), {"n": "1"})
    before = path.read_bytes()
    monkeypatch.setattr(
        "os.fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error"))
    )
    with pytest.raises(
        UserError, match=r"model\.safetensors cannot be written: Input/output error"
    ):
        write_model(path, Small(), {"n": "2"})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(UserError, match=r"model\.safetensors: there is no such file"):
        read_model(path)
    path.write_bytes(b"PK\3\4 surely a pickle")
    with pytest.raises(DamagedError, match=r"model\.safetensors is not a complete safetensors"):
        read_model(path)
    write_model(path, Small(), {})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match=r"model\.safetensors is not a complete safetensors"):
        read_model(path)
    with pytest.raises(UserError, match=r"cannot be read|not a complete"):
        read_model(tmp_path)


def test_a_dtype_that_the_format_lacks(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("z", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(UserError, match=r"complex128"):
        write_model(tmp_path / "m", model, {})
    assert list(tmp_path.iterdir()) == []


def test_weights_are_taken_by_name() -> None:
    source, model = Small(), Small(extra=True).bfloat16()
    taken, new = take_weights(model, source.state_dict())
    assert taken == ("embedding.weight", "norm.weight", "norm.bias", "head.weight")
    assert new == ("new.weight", "new.bias")
    assert model.embedding.weight.equal(source.embedding.weight.bfloat16())
    assert model.head.weight is model.embedding.weight
    assert model.embedding.weight.requires_grad


def test_what_is_not_used_is_said() -> None:
    source = Small(extra=True)
    with pytest.warns(UserWarning, match=r"new\.weight, new\.bias"):
        take_weights(Small(), source.state_dict())


def test_other_shapes_are_refused_all_at_once_and_nothing_is_taken() -> None:
    model = Small(tied=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        take_weights(model, Small(vocab=12, tied=False).state_dict())
    assert caught.value.lines == (
        "embedding.weight: shape [12, 4] in the checkpoint, [10, 4] in the model.",
        "head.weight: shape [12, 4] in the checkpoint, [10, 4] in the model.",
    )
    turned = {"embedding.weight": model.embedding.weight.detach().T.contiguous()}
    with pytest.raises(UserError, match=r"embedding\.weight: shape \[4, 10\] in the checkpoint"):
        take_weights(model, turned)
    assert all(before[name].equal(tensor) for name, tensor in model.state_dict().items())


def test_an_untied_head_is_not_forced_into_a_tied_model() -> None:
    with pytest.raises(UserError, match=r"head\.weight: tied to embedding\.weight in the model"):
        take_weights(Small(), Small(tied=False).state_dict())
    model, source = Small(tied=False), Small()
    take_weights(model, source.state_dict())
    assert model.head.weight.equal(source.embedding.weight)


def test_no_name_in_common() -> None:
    with pytest.raises(UserError, match=r"None of the 2 .* wte, wpe; .* embedding\.weight, norm"):
        take_weights(Small(), {"wte": torch.ones(1), "wpe": torch.ones(1)})


def test_equal_content_makes_equal_files(tmp_path: Path) -> None:
    """The library writes metadata in any order."""
    model = nn.Linear(2, 3)
    metadata = {f"key {i} \u00fc\n\t\x01": f'"{i}" \u65e5' for i in range(9)}
    for name in "abc":
        write_model(tmp_path / name, model, metadata)
    assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1
    assert read_metadata(tmp_path / "a") == metadata
    assert read_model(tmp_path / "a")["weight"].equal(model.weight)


def test_files_are_those_of_the_library(tmp_path: Path) -> None:
    """Byte for byte, of all dtypes and shapes."""
    tensors = {
        f"{dtype} {shape}": torch.ones(shape).to(getattr(torch, dtype))
        for dtype in weights.DTYPES
        for shape in ((), (3,), (2, 5), (0, 4))
    } | {"\u00e9\u65e5": torch.arange(7.0)}
    save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    weights.write_tensors(tmp_path / "ours", tensors, {})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_values_come_in_any_order_and_others_are_left_out(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2, 2, dtype=torch.int64), "c": torch.ones(0)}
    described = {name: tensor.to("meta") for name, tensor in tensors.items()}
    weights.write_tensors(tmp_path / "whole", tensors, {"n": "1"})
    values = (("d", torch.ones(1)), ("b", tensors["b"]), ("a", tensors["a"].double()))
    weights.write_tensors(tmp_path / "one by one", described, {"n": "1"}, iter(values))
    assert (tmp_path / "one by one").read_bytes() == (tmp_path / "whole").read_bytes()
    with pytest.raises(AssertionError, match="no values of"):
        weights.write_tensors(tmp_path / "short", described, {}, iter(values[2:]))


def test_a_model_without_memory_says_what_its_file_is(tmp_path: Path) -> None:
    """Ties too, which it has no addresses for."""
    model = Small()
    with torch.device("meta"):
        described = Small()
    described.head.weight = described.embedding.weight
    write_model(tmp_path / "whole", model, {"n": "1"})
    write_model(tmp_path / "values", described, {"n": "1"}, model.state_dict().items())
    assert (tmp_path / "values").read_bytes() == (tmp_path / "whole").read_bytes()
    weights.check_model(tmp_path / "whole", described)
    with pytest.raises(UserError, match="meta device"):
        load_model(tmp_path / "whole", described)
    with pytest.raises(UserError, match=r"new\.weight: missing from the checkpoint"):
        weights.check_model(tmp_path / "whole", Small(extra=True))
    assert take_weights(described, Opened(tmp_path / "whole")) == (
        ("embedding.weight", "norm.weight", "norm.bias", "head.weight"),
        (),
    )


def test_a_mapped_model_has_the_weights_of_the_file(tmp_path: Path) -> None:
    source, model = Small(), Small()
    write_model(tmp_path / "m", source, {})
    load_model(tmp_path / "m", model, mapped=True)
    for name, tensor in source.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    with torch.no_grad():
        model.norm.weight.add_(1)  # in this process alone
    assert read_model(tmp_path / "m")["norm.weight"].equal(source.norm.weight)


def test_sources_name_tied_tensors_once() -> None:
    assert weights.sources(Small(), {"head.weight", "norm.bias", "strange"}) == {
        "embedding.weight": "head.weight",
        "norm.bias": "norm.bias",
    }
