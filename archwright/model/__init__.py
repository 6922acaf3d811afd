"""How parts make a model."""

from archwright.model.build import build as build
from archwright.model.build import build_layer as build_layer
from archwright.model.decoder import Decoder as Decoder
from archwright.model.language_model import LanguageModel as LanguageModel
from archwright.model.language_model import Output as Output
