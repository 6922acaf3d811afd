"""Text generation: sampling and beam search."""

from archwright.generation.sampling import sample as sample
from archwright.generation.writing import Generated as Generated
from archwright.generation.writing import generate as generate
from archwright.generation.writing import stream as stream
