"""The memory of first-order and quasi-Newton updates."""

import jax
import numpy as np
import pytest

from sklearn_gn.optim import first_order


@pytest.mark.parametrize("name", [*first_order.OPTIMISERS, "lbfgs"])
def test_memory_has_one_type_from_the_start(name, float64):
    """Otherwise the second step of a fit is compiled once more."""
    method = first_order.lbfgs(4) if name == "lbfgs" else name
    memory = first_order.start(method, {"a": np.ones(3), "b": np.ones((2, 2))})
    assert jax.tree.leaves(memory)
    assert not any(leaf.aval.weak_type for leaf in jax.tree.leaves(memory))
