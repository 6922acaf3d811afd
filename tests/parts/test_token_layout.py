import jaxtyping
import pytest
import torch

from archwright.parts.token_layout import token_layout

TOKENS = torch.zeros(2, 5, dtype=torch.long)


def test_plain_rows_are_all_alike() -> None:
    where = token_layout(TOKENS)
    assert where.plain
    assert where.position_ids_or_range().tolist() == [[0, 1, 2, 3, 4]]
    assert where.index_or_range().tolist() == [[0, 1, 2, 3, 4]]


def test_positions_count_real_tokens() -> None:
    real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    where = token_layout(TOKENS, padding_mask=real)
    assert where.position_ids_or_range()[0, 2:].tolist() == [0, 1, 2]
    assert where.position_ids_or_range()[1, :3].tolist() == [0, 1, 2]
    assert int(where.position_ids_or_range().min()) == 0


def test_positions_start_anew_in_each_document() -> None:
    documents = torch.tensor([[4, 4, 4, 9, 9], [1, 2, 2, 1, 1]])
    where = token_layout(TOKENS, segment_ids=documents)
    assert where.position_ids_or_range().tolist() == [[0, 1, 2, 0, 1], [0, 0, 1, 0, 1]]
    assert not where.plain


@pytest.mark.parametrize("filler", [0, 5, -1])
def test_documents_beside_padding(filler: int) -> None:
    real = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool()
    documents = torch.tensor([[filler, 5, 5, 6, 6], [5, 6, 6, 6, filler]])
    found = token_layout(TOKENS, segment_ids=documents, padding_mask=real).position_ids_or_range()
    assert found[0, 1:].tolist() == [0, 1, 0, 1]
    assert found[1, :4].tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("filler", [0, 5, -1])
def test_a_text_is_as_long_as_its_real_tokens(filler: int) -> None:
    real = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool()
    documents = torch.tensor([[filler, 5, 5, 6, 6], [5, 6, 6, 6, filler]])
    found = token_layout(TOKENS, segment_ids=documents, padding_mask=real).lengths_so_far_or_end()
    assert found[0, 1:].tolist() == [2, 2, 2, 2]
    assert found[1, :4].tolist() == [1, 3, 3, 3]
    assert token_layout(TOKENS, padding_mask=real).lengths_so_far_or_end().tolist() == [[4] * 5] * 2
    assert token_layout(TOKENS).lengths_so_far_or_end().tolist() == [[5] * 5]
    given = torch.tensor([7, 8, 9, 10, 11])
    assert token_layout(TOKENS, given).lengths_so_far_or_end().tolist() == [[12] * 5]


@pytest.mark.parametrize(
    "given", [torch.tensor([5, 4, 3, 2, 1]), torch.tensor([[5, 4, 3, 2, 1]] * 2)]
)
def test_given_positions_are_kept(given: torch.Tensor) -> None:
    where = token_layout(TOKENS, given, TOKENS, TOKENS == 0)
    assert where.position_ids_or_range().expand(2, 5).tolist() == [[5, 4, 3, 2, 1]] * 2
    assert where.index_or_range().tolist() == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tokens": torch.zeros(5).long()}, r"tokens: found shape \[5\]; expected \[batch, length\]"),
        ({"position_ids": torch.arange(4)}, r"position_ids: found shape \[1, 4\]; expected \[2, 5\] or \[5\]"),
        ({"position_ids": torch.zeros(3, 5).long()}, r"position_ids: found shape \[3, 5\]; expected \[2, 5\]"),
        ({"segment_ids": torch.zeros(5).long()}, r"segment_ids: found shape \[5\]; expected that of"),
        ({"padding_mask": torch.ones(2, 4).bool()}, r"padding_mask: found shape \[2, 4\]; expected that"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(
    arguments: dict[str, torch.Tensor], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user meets them, without the checks that only tests have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=said):
        token_layout(**{"tokens": TOKENS, **arguments})


@pytest.mark.parametrize("filler", [0, 9])
def test_some_columns_stand_where_they_do_among_all(filler: int) -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [4, 4, 4, 4, 4, filler]])
    real = torch.tensor([[True] * 6, [False, True, True, True, True, False]])
    for given in ({}, {"segment_ids": documents}, {"padding_mask": real}):
        whole = token_layout(torch.zeros(2, 6, dtype=torch.long), **given)  # type: ignore[arg-type]
        for first, stop in ((0, 2), (2, 6)):
            some = whole.columns(first, stop)
            assert some.length == stop - first
            assert some.plain == whole.plain
            assert (some.position_ids is some.index) == (whole.position_ids is whole.index)
            for name in ("position_ids_or_range", "index_or_range", "lengths_so_far_or_end"):
                assert torch.equal(getattr(some, name)(), getattr(whole, name)()[:, first:stop])
            assert torch.equal(some.text_lengths, whole.text_lengths[:, first:stop])
