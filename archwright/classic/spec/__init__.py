"""Specs of special choices; importing this package adds them to their axes."""

import archwright.spec.rules  # noqa: F401  # isort: skip  # other choices first, in any order of imports

from archwright.classic.spec import axial as axial
from archwright.classic.spec import big_bird as big_bird
from archwright.classic.spec import disentangled as disentangled
from archwright.classic.spec import gap_sentences as gap_sentences
from archwright.classic.spec import longformer as longformer
from archwright.classic.spec import lsh as lsh
from archwright.classic.spec import reversible as reversible
from archwright.classic.spec import transient_global as transient_global
