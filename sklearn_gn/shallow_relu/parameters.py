"""The parameters of a shallow ReLU network."""

from typing import Any, NamedTuple


class ShallowReLU(NamedTuple):
    """Parameters of a shallow ReLU network with q outputs.

    ``alive`` marks the neurons in use: arrays have room for a few neurons more than the
    network, so that neurons come and go without changing shapes (and recompiling).
    """

    hyperplanes: Any  # (n, 1 + d), rows r_i = (b_i, w_i), |w_i| = 1
    coef: Any  # (n, q), zero where not alive
    intercept: Any  # (q,)
    alive: Any  # (n,) bool
