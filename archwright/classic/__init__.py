"""Special choices of published models, joined to the workbench like choices from outside.

No other module imports this package by name. `spec/installed.py` loads it (`load_classic`): `Choice.choices` its specs,
without torch, `Registry.of` its parts, and `hf.families` its families. Presets are files in `presets/`. Without this
folder, its kinds and families are unknown, its presets are missing, and all else works.

Members of the contracts, each with a default, that only these choices use:

- `Choice.spelling`: common spelling of a kind.
- `Mask.differs_by_layer`: random blocks of BigBird.
- `MaskPattern.needs_length` with `visible_in`: outer blocks of BigBird.
- `MaskPattern.repeats` with `times`: first blocks of BigBird that stand for random ones.
- `Mixer.chooses_keys`: hashes of Reformer.
- `Mixer.num_shared_parameters`, `Attention.knows_distances`: tables of distances of DeBERTa.
- `MaskedAttention.further_positions`: sums of LongT5.
- `Residual.is_reversible`, `Wiring.whole_pass`, `Context.kept`: recomputed layers of Reformer.
"""
