"""Numbers that kernels and their reference implementations in `layers` share. This module does not
import Triton."""

from __future__ import annotations

# The 64-bit constants of SplitMix64 (Steele et al., 2014), as signed integers: torch has no full
# uint64 arithmetic.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX1 = 0xBF58476D1CE4E5B9 - 2**64
MIX2 = 0x94D049BB133111EB - 2**64

NO_ID = -1
"""Id that a sampler returns for logits that have a NaN or an infinity, or are all -inf. No id is
negative."""
VECTOR_ID = -2
"""In place of an id where a position of a prompt has its request's vector, and no row of a
table."""
MIN_TEMPERATURE = 1e-5
"""A temperature below this divides logits as this one does; temperature 0 takes the largest
logit."""

LOG2_E = 1.4426950408889634
"""exp(x) is exp2(x LOG2_E), which a GPU computes in one instruction."""
