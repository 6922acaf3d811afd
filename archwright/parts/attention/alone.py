"""What an attention needs besides its vectors, where no model gives it."""

from torch import Tensor, nn

from archwright.parts.masks import AttentionMask, given_mask, pattern_of
from archwright.parts.positions import Rotation
from archwright.parts.positions import rotation as rotation_at
from archwright.parts.token_layout import TokenLayout
from archwright.spec.attention import MaskedAttention


def alone(
    spec: MaskedAttention, x: Tensor, rotary: nn.Module | None, attention_mask: Tensor | None
) -> tuple[AttentionMask, Rotation | None]:
    """Return what each row of x sees as a text that begins at position 0, and what turns it there: through
    the mask of the spec, or through the given one."""
    assert spec.num_heads != "auto"
    batch, length = x.shape[:2]
    where = TokenLayout(length, x.device)
    rotation = None if rotary is None else rotation_at(rotary, where)
    if attention_mask is None:
        return AttentionMask(pattern_of(spec.mask, spec.num_heads), where), rotation
    given = given_mask(attention_mask, batch, spec.num_heads, length, length)
    return AttentionMask(given, where), rotation
