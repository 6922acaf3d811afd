"""How parts make a model."""

from archwright.model.build import build as build
from archwright.model.build import build_layer as build_layer
from archwright.model.model import Decoder as Decoder
from archwright.model.model import Layer as Layer
from archwright.model.model import Output as Output
from archwright.model.model import Stack as Stack
