"""Step, predicted and actual reduction, accept, adapt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.optim.globalisation import Nielsen, search_step

pytestmark = pytest.mark.usefixtures("float64")


def search(trial, *, max_trials=20, shift=1.0):
    """Search from the number 5, in a compiled function."""

    def run():
        current, damping = jnp.asarray(5.0), Nielsen.start(jnp.asarray(shift), 1)
        return search_step(trial, current, damping, max_trials=max_trials)

    return jax.jit(run)()


def accepted_from(limit):
    """A trial that lowers the objective for shifts of at least ``limit``."""

    def trial(control, _):
        shift = control.value
        actual = jnp.where(shift >= limit, 0.5, -1.0)
        return shift, actual, jnp.ones_like(shift)

    return trial


@pytest.mark.parametrize(("limit", "n_trials"), [(0.5, 1), (2, 2), (8, 3), (60, 4)])
def test_damping_grows_after_nielsen_s_rule_until_a_step_is_accepted(limit, n_trials):
    shifts = [1, 2, 8, 64]
    found = search(accepted_from(limit))
    assert found.accepted
    assert found.n_trials == n_trials
    assert found.tried.value == found.candidate == shifts[n_trials - 1]
    assert found.gain_ratio == 0.5
    # A gain ratio of one half leaves the shift, and the next growth is two again.
    assert found.control == (shifts[n_trials - 1], 2)


def test_the_last_step_of_a_search_may_be_one_that_is_not_accepted():
    found = search(accepted_from(np.inf), max_trials=3)
    assert not found.accepted
    assert found.n_trials == 3
    assert found.candidate == 8
    assert found.control == (64, 16)


def test_search_ends_where_the_model_predicts_no_reduction():
    def trial(control, _):
        shift = control.value
        return shift, -shift, jnp.zeros_like(shift)

    found = search(trial)
    assert not found.accepted
    assert found.n_trials == 1
    assert found.gain_ratio == 0
