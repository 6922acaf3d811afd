"""Position encodings beside their formulas, in plain Python and complex numbers."""

import cmath
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.parts.positions import Learned, Rotary, Sinusoidal
from archwright.parts.token_layout import TokenLayout, token_layout
from archwright.spec import positions as spec


def plain(length: int) -> TokenLayout:
    return token_layout(torch.zeros(1, length, dtype=torch.long))


def turned(x: list[float], position: int, theta: float, rotary: int, pairing: str) -> list[float]:
    """Turn one head's vector: each pair is a complex number, multiplied by e^(i angle)."""
    out = list(x)
    for i in range(rotary // 2):
        a, b = (i, i + rotary // 2) if pairing == "half" else (2 * i, 2 * i + 1)
        z = complex(x[a], x[b]) * cmath.exp(1j * position * theta ** (-2 * i / rotary))
        out[a], out[b] = z.real, z.imag
    return out


class TestSinusoidal:
    @pytest.mark.parametrize(("dim", "theta"), [(8, 10_000.0), (7, 100.0)])
    def test_formula(self, dim: int, theta: float) -> None:
        table = Sinusoidal(spec.Sinusoidal(theta=theta), dim, 1)(plain(50))
        for p in (0, 1, 7, 49):
            for i in range(dim):
                angle = p * theta ** (-(i // 2 * 2) / dim)
                expected = math.cos(angle) if i % 2 else math.sin(angle)
                assert table[0, p, i].item() == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("dim", [8, 7])
    def test_all_sines_may_come_first(self, dim: int) -> None:
        choice = spec.Sinusoidal(theta=100.0, layout="half")
        table = Sinusoidal(choice, dim, 1)(plain(50))
        sines = (dim + 1) // 2
        for p in (0, 1, 7, 49):
            for i in range(dim):
                angle = p * 100.0 ** (-2 * (i % sines) / dim)
                expected = math.sin(angle) if i < sines else math.cos(angle)
                assert table[0, p, i].item() == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("dim", [8, 6])
    def test_spacing_and_offset(self, dim: int) -> None:
        """As in the library's XGLM, whose table is fairseq's; the last wavelength is theta itself."""
        choice = spec.Sinusoidal(layout="half", spacing="fairseq", offset=2)
        table = Sinusoidal(choice, dim, 1)(plain(20))[0]
        for p in (0, 1, 7, 19):
            for i in range(dim // 2):
                angle = (p + 2) * 10_000.0 ** (-i / (dim / 2 - 1))
                assert table[p, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
                assert table[p, dim // 2 + i].item() == pytest.approx(math.cos(angle), abs=1e-6)
        library = pytest.importorskip("transformers.models.xglm.modeling_xglm")
        theirs = library.XGLMSinusoidalPositionalEmbedding(20, dim, padding_idx=1)
        torch.testing.assert_close(table, theirs(torch.arange(20)[None])[0], rtol=0, atol=2e-6)

    def test_a_single_pair_turns_once_a_token(self) -> None:
        found = Sinusoidal(spec.Sinusoidal(spacing="fairseq"), 2, 1)(plain(3))[0]
        torch.testing.assert_close(found[:, 0], torch.arange(3).sin())

    def test_given_positions_and_any_length(self) -> None:
        part = Sinusoidal(spec.Sinusoidal(), 8, 4)
        given = torch.tensor([[100_000, 3, 3], [0, 1, 2]])
        found = part(token_layout(torch.zeros(2, 3, dtype=torch.long), given))
        assert found.shape == (2, 3, 8)
        assert found[0, 0, 0].item() == pytest.approx(math.sin(100_000), abs=1e-6)
        assert torch.equal(found[0, 1], found[0, 2])
        assert torch.equal(found[1], part(plain(3))[0])


class TestLearned:
    def test_rows_of_the_table(self) -> None:
        part = Learned(spec.Learned(), 6, 4)
        torch.nn.init.normal_(part.table.weight)
        assert torch.equal(part(plain(3))[0], part.table.weight[:3])
        given = torch.tensor([3, 0])
        found = part(token_layout(torch.zeros(1, 2, dtype=torch.long), given))
        assert torch.equal(found[0], part.table.weight[given])

    def test_the_table_may_begin_with_other_rows(self) -> None:
        part = Learned(spec.Learned(offset=2), 6, 4)
        torch.nn.init.normal_(part.table.weight)
        assert part.table.weight.shape == (6, 6)
        for p, row in enumerate(part(plain(4))[0]):
            assert row.tolist() == part.table.weight[p + 2].tolist()
        with pytest.raises(ValueError, match="found 5 tokens; expected at most context_length = 4"):
            part(plain(5))

    def test_the_table_ends(self) -> None:
        part = Learned(spec.Learned(), 6, 4)
        with pytest.raises(ValueError, match="found 5 tokens; expected at most context_length = 4"):
            part(plain(5))


PAIRINGS = pytest.mark.parametrize("pairing", ["half", "interleaved"])


def rotary(pairing: str, head_dim: int = 12, **options: float) -> Rotary:
    return Rotary(spec.RoPE.model_validate({"pairing": pairing, **options}), head_dim).double()


@PAIRINGS
class TestRotary:
    @pytest.mark.parametrize(
        ("fraction", "num_rotary", "theta"), [(1.0, 12, 10_000.0), (0.5, 6, 50.0), (0.34, 4, 9.0)]
    )
    def test_formula(self, pairing: str, fraction: float, num_rotary: int, theta: float) -> None:
        part = rotary(pairing, fraction=fraction, theta=theta)
        torch.manual_seed(0)
        x = torch.randn(2, 5, 3, 12, dtype=torch.float64)
        positions = torch.tensor([[0, 1, 2, 3, 4], [7, 7, 0, 100, 31]])
        found = part.rotate(x, part(positions))
        for b, t, h in np.ndindex(2, 5, 3):
            at = int(positions[b, t])
            expected = turned(x[b, t, h].tolist(), at, theta, num_rotary, pairing)
            assert found[b, t, h].tolist() == pytest.approx(expected, abs=1e-5)

    def test_only_distances_matter(self, pairing: str) -> None:
        part = rotary(pairing)
        torch.manual_seed(0)
        q, k = torch.randn(2, 1, 6, 2, 12, dtype=torch.float64)

        def scores(first: int) -> Tensor:
            rotation = part(torch.arange(first, first + 6)[None])
            return torch.einsum(
                "bqhd,bkhd->bhqk", part.rotate(q, rotation), part.rotate(k, rotation)
            )

        torch.testing.assert_close(scores(0), scores(1000), rtol=1e-9, atol=1e-9)
        assert not torch.allclose(scores(0), torch.einsum("bqhd,bkhd->bhqk", q, k))

    def test_one_rotation_serves_rows_that_are_alike(self, pairing: str) -> None:
        part = rotary(pairing)
        x = torch.randn(3, 4, 2, 12, dtype=torch.float64)
        once, each = part(torch.arange(4)[None]), part(torch.arange(4).expand(3, 4))
        torch.testing.assert_close(part.rotate(x, once), part.rotate(x, each), rtol=0, atol=0)

    @pytest.mark.slow
    def test_gradients(self, pairing: str) -> None:
        part = rotary(pairing, fraction=0.5)
        rotation = part(torch.tensor([[3, 9]]))
        x = torch.randn(2, 2, 2, 12, dtype=torch.float64, requires_grad=True)
        call = lambda x: part.rotate(x, rotation)  # noqa: E731
        assert torch.autograd.gradcheck(call, x)
        assert torch.autograd.gradgradcheck(call, x)

    def test_what_lies_in_pieces_is_turned_as_well(self, pairing: str) -> None:
        part = rotary(pairing)
        x = torch.randn(2, 12, 3, 4, dtype=torch.float64).permute(0, 2, 3, 1)
        rotation = part(torch.arange(3)[None])
        torch.testing.assert_close(part.rotate(x, rotation), part.rotate(x.contiguous(), rotation))

    def test_half_precision_models_keep_their_angles(self, pairing: str) -> None:
        """bfloat16 has no 1001, and a frequency rounded to it is a full turn off after some hundreds."""
        exact, half = rotary(pairing, 64), rotary(pairing, 64).float().to(torch.bfloat16)
        positions = torch.tensor([[1001, 30_000]])
        assert half.frequencies.dtype == torch.float32
        found, expected = half(positions), exact(positions)
        for angles, exact_ones in zip(found, expected, strict=True):
            torch.testing.assert_close(angles.double(), exact_ones, rtol=0, atol=5e-3)

    def test_half_precision_values(self, pairing: str) -> None:
        part = rotary(pairing, 64)
        x = torch.randn(1, 9, 2, 64, dtype=torch.float64)
        rotation = part(torch.arange(9)[None])
        found = part.rotate(x.bfloat16(), rotation)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), part.rotate(x, rotation), rtol=2e-2, atol=2e-2)


def test_frequencies_are_no_part_of_the_weights() -> None:
    assert not rotary("half").state_dict()
    assert "frequencies" in dict(rotary("half").named_buffers())


@PAIRINGS
def test_rotation_changes_no_input(pairing: str) -> None:
    part = rotary(pairing)
    x, rotation = torch.randn(1, 2, 1, 12).double(), part(torch.tensor([[1, 2]]))
    before = [t.clone() for t in (x, *rotation)]
    part.rotate(x, rotation)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, *rotation), strict=True))
