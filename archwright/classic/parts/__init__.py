"""Parts of special choices; importing this package registers them."""

from archwright.classic import spec
from archwright.classic.parts import (
    axial,
    big_bird,
    disentangled,
    gap_sentences,
    longformer,
    lsh,
    reversible,
    transient_global,
)
from archwright.plugins import register

register(spec.axial.Axial, axial.Axial)
register(spec.big_bird.BigBird, big_bird.BigBird)
register(spec.disentangled.DisentangledAttention, disentangled.DisentangledAttention)
register(spec.gap_sentences.GapSentences, gap_sentences.gap_sentences)
register(spec.longformer.Longformer, longformer.Longformer)
register(spec.longformer.LongformerAttention, longformer.LongformerAttention)
register(spec.lsh.LSHAttention, lsh.LSHAttention)
register(spec.reversible.Reversible, reversible.Reversible)
register(spec.transient_global.TransientGlobalAttention, transient_global.TransientGlobalAttention)
