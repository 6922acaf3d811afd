"""BigBird's attention in configs: blocks, of which the classes of the library see random ones in training alone."""

from archwright.hf.lenses import Computed, Config, Field, Lens, Set, Switch, nested

TYPE, SPARSE = "attention_type", "block_sparse"


def sparse_blocks(at: str, *lenses: Lens, full: Lens | None = None) -> Switch:
    """Return the lens of whether attention at this path is in blocks.

    Args:
        lenses: what else holds where it is.
        full: what holds where it is not.
    """
    return Switch(
        TYPE,
        {
            SPARSE: (
                *lenses,
                Set({f"{at}.mask.kind": "big_bird"}),
                # In training the class draws blocks.
                Computed(lambda config: nested(f"{at}.mask.random", "first")),
                Field("block_size", f"{at}.mask.block_size"),
                Field("num_random_blocks", f"{at}.mask.num_random"),
            ),
            "original_full": full or Set({}),
        },
    )


def has_sparse_blocks(config: Config) -> bool:
    """Tell whether a config's attention is in blocks, the last of which is that of a text with its padding."""
    return bool(config[TYPE] == SPARSE)
