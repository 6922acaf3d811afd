"""How each choice is computed: one file per axis, each ending in its registry, from spec to part."""
