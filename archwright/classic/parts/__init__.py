"""Parts of special choices; importing this package registers them."""

from archwright.classic import spec
from archwright.classic.parts import (
    axial,
    big_bird,
    disentangled,
    distance_scores,
    gap_sentences,
    longformer,
    lsh,
    transient_global,
)
from archwright.plugins import register

register(spec.axial.Axial, axial.Axial)
register(spec.big_bird.BigBird, big_bird.BigBird)
register(spec.disentangled.DisentangledAttention, disentangled.DisentangledAttention)
register(spec.distance_scores.BucketScores, distance_scores.BucketScores)
register(spec.gap_sentences.GapSentences, gap_sentences.gap_sentences)
register(spec.longformer.Longformer, longformer.Longformer)
register(spec.longformer.LongformerAttention, longformer.LongformerAttention)
register(spec.lsh.LSHAttention, lsh.LSHAttention)
register(spec.transient_global.TransientGlobalAttention, transient_global.TransientGlobalAttention)
