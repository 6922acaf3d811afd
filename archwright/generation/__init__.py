"""Text generation: sampling and beam search."""

from archwright.generation.sampling import sample as sample
from archwright.generation.writing import generate as generate
from archwright.generation.writing import generate_many as generate_many
from archwright.generation.writing import stream as stream
