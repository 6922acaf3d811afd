"""BigBird's block-sparse attention in configs."""

from archwright.hf.lenses import Computed, Config, Field, Lens, Set, Switch, nested

TYPE, SPARSE = "attention_type", "block_sparse"


def sparse_blocks(at: str, *lenses: Lens, full: Lens | None = None) -> Switch:
    """Return the lens of `attention_type` for the attention at a path.

    Args:
        lenses: Further lenses of block-sparse attention.
        full: Lens of full attention; by default it sets nothing.
    """
    return Switch(
        TYPE,
        {
            SPARSE: (
                *lenses,
                Set({f"{at}.mask.kind": "big_bird"}),
                # The class draws random blocks only in training.
                Computed(lambda config: nested(f"{at}.mask.random", "first")),
                Field("block_size", f"{at}.mask.block_size"),
                Field("num_random_blocks", f"{at}.mask.num_random"),
            ),
            "original_full": full or Set({}),
        },
    )


def has_sparse_blocks(config: Config) -> bool:
    """True if attention is block-sparse, so that padding changes the last block."""
    return bool(config[TYPE] == SPARSE)
