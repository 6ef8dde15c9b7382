"""Step, predicted and actual reduction, accept, adapt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.optim.globalisation import Nielsen, search_damping

pytestmark = pytest.mark.usefixtures("float64")


def search(trial, *, max_trials=20, shift=1.0):
    """Search from the number 5, in a compiled function."""

    def run():
        current, damping = jnp.asarray(5.0), Nielsen.start(jnp.asarray(shift))
        found = search_damping(trial, current, damping, max_trials=max_trials)
        return found, found.accepted_or(current)

    return jax.jit(run)()


def accepted_from(limit):
    """A trial that lowers the objective for shifts of at least ``limit``."""

    def trial(shift, _):
        actual = jnp.where(shift >= limit, 0.5, -1.0)
        return shift, actual, jnp.ones_like(shift)

    return trial


def test_step_of_an_exact_model_is_taken_and_damping_falls_to_a_third():
    found, kept = search(lambda shift, _: (shift + 6, shift, shift))
    assert found.accepted
    assert found.n_trials == 1
    assert found.gain_ratio == 1
    assert kept == 7
    assert found.damping.value == pytest.approx(1 / 3, rel=1e-12)


@pytest.mark.parametrize(("limit", "n_trials"), [(0.5, 1), (2, 2), (8, 3), (60, 4)])
def test_damping_grows_after_nielsen_s_rule_until_a_step_is_accepted(limit, n_trials):
    shifts = [1, 2, 8, 64]
    found, kept = search(accepted_from(limit))
    assert found.n_trials == n_trials
    assert found.shift == kept == shifts[n_trials - 1]
    assert found.gain_ratio == 0.5
    # A gain ratio of one half leaves the shift, and the next growth is two again.
    assert found.damping == (shifts[n_trials - 1], 2)


def test_without_an_accepted_step_the_current_point_stays():
    found, kept = search(accepted_from(np.inf), max_trials=3)
    assert not found.accepted
    assert found.n_trials == 3
    assert found.candidate == 8
    assert kept == 5
    assert found.damping == (64, 16)


def test_search_ends_where_the_model_predicts_no_reduction():
    def trial(shift, _):
        return shift, -shift, jnp.zeros_like(shift)

    found, kept = search(trial)
    assert found.n_trials == 1
    assert found.gain_ratio == 0
    assert kept == 5


def test_steps_that_are_not_finite_are_rejected():
    def trial(shift, _):
        actual = jnp.where(shift > 5, shift, jnp.nan)
        return actual, actual, jnp.ones_like(shift)

    found, kept = search(trial)
    assert found.accepted
    assert kept == 8


def test_one_trial_is_compiled_without_a_loop():
    def jaxpr(max_trials):
        return str(
            jax.make_jaxpr(
                lambda shift: search_damping(
                    accepted_from(2),
                    shift,
                    Nielsen.start(shift),
                    max_trials=max_trials,
                )
            )(1.0)
        )

    assert "while" in jaxpr(2)
    assert "while" not in jaxpr(1)
    found, kept = search(accepted_from(2), max_trials=1)
    assert not found.accepted
    assert kept == 5
    assert found.damping == (2, 4)


def test_searches_run_side_by_side():
    def run(limit):
        damping = Nielsen.start(jnp.ones(()))
        return search_damping(
            accepted_from(limit), jnp.zeros(()), damping, max_trials=9
        )

    found = jax.jit(jax.vmap(run))(np.array([0.5, 8.0, 2.0]))
    np.testing.assert_array_equal(found.n_trials, [1, 3, 2])
    np.testing.assert_array_equal(found.candidate, [1, 8, 2])


def test_a_fixed_shift_is_that_of_all_trials_which_are_counted():
    def trial(shift, n_before):
        length = jnp.exp2(-n_before.astype(shift.dtype))
        return length * shift, jnp.where(n_before == 2, 1.0, -1.0), length

    def run():
        damping = Nielsen.start(jnp.asarray(1.0))
        fixed = jnp.asarray(12.0)
        return search_damping(
            trial, jnp.asarray(0.0), damping, fixed=fixed, max_trials=9
        )

    found = jax.jit(run)()
    assert found.accepted
    assert found.shift == 12
    assert found.candidate == 3
    assert found.n_trials == 3
