"""Mixers: how tokens exchange information."""

from archwright.parts.mixers.attention import AttentionMixer as AttentionMixer
from archwright.parts.mixers.attention import SoftmaxAttention as SoftmaxAttention
from archwright.parts.mixers.base import Mixer as Mixer
from archwright.parts.mixers.cross import SoftmaxCrossAttention as SoftmaxCrossAttention
from archwright.parts.mixers.gated_conv import GatedConv as GatedConv
from archwright.parts.mixers.latent import LatentAttention as LatentAttention
from archwright.parts.mixers.linear import DECAYS as DECAYS
from archwright.parts.mixers.linear import LinearRecurrence as LinearRecurrence
from archwright.parts.mixers.recurrent import Conv as Conv
from archwright.parts.mixers.recurrent import RecurrentMixer as RecurrentMixer
from archwright.parts.mixers.recurrent import StateTensor as StateTensor
from archwright.parts.mixers.rwkv7 import RWKV7 as RWKV7
from archwright.parts.mixers.scales import QUERY_TEMPERATURES as QUERY_TEMPERATURES
from archwright.parts.mixers.scales import SCORE_SCALES as SCORE_SCALES
from archwright.parts.mixers.selective import RGLRU as RGLRU
from archwright.parts.mixers.selective import SelectiveScan as SelectiveScan
from archwright.parts.mixers.value_embeddings import VALUE_EMBEDDINGS as VALUE_EMBEDDINGS
from archwright.parts.registry import Registry
from archwright.parts.scans import ScanInputs as ScanInputs
from archwright.spec import attention as spec
from archwright.spec import cross_attention as cross_spec
from archwright.spec import recurrences as recurrence_spec
from archwright.spec import selective as selective_spec
from archwright.spec.latent import LatentAttention as LatentSpec
from archwright.spec.mixers import Recurrence

ATTENTIONS = Registry(
    spec.Attention,
    "(spec, dim, layer)",
    Mixer,
    {
        spec.SoftmaxAttention: SoftmaxAttention,
        LatentSpec: LatentAttention,
    },
)
"""Modules, as `Mixer` describes them; `layer` is a `LayerInfo`."""

RECURRENCES = Registry(
    Recurrence,
    "(spec, dim, layer)",
    Mixer,
    {
        recurrence_spec.LinearRecurrence: LinearRecurrence,
        recurrence_spec.ShortConvolution: GatedConv,
        recurrence_spec.RWKV7: RWKV7,
        selective_spec.SelectiveScan: SelectiveScan,
        selective_spec.RGLRU: RGLRU,
    },
)
"""Modules, as `Mixer` describes them; `layer` is a `LayerInfo`."""

CROSS_ATTENTIONS = Registry(
    cross_spec.CrossAttention,
    "(spec, dim, layer)",
    Mixer,
    {cross_spec.SoftmaxCrossAttention: SoftmaxCrossAttention},
)
"""Modules, as `Mixer` describes them; `layer.memory_dim` is the width of the encoder."""
