"""How parts make a model."""

from archwright.model.build import build as build
from archwright.model.build import build_layer as build_layer
from archwright.model.decoder import Decoder as Decoder
from archwright.model.decoder import Output as Output
