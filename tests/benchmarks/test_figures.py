"""Figures of the papers."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from benchmarks.figures import fgn, taylor, varpro


def of_steps(n_classes, **seconds):
    methods = {
        name: {"summary": {"seconds_per_step": {"median": value}}}
        for name, value in seconds.items()
    }
    return {"classes": n_classes, "methods": methods}


def accuracies(mean):
    """A method as ``fgn_heads`` writes it."""
    curves = {"seconds": [1.0, 2.0], "accuracy_mean": mean, "accuracy_std": [0.1, 0.2]}
    return {"curves": curves}


MECHANISM = {
    "problems": {  # sizes in the order of their names, not of the numbers
        "steps_16": of_steps(16, adam=0.25, fgn=0.5, mine=None),
        "steps_2": of_steps(2, adam=0.125, fgn=0.25, mine=1.0),
        "traces": {
            "dispersion": [0.0, 0.5],
            "retained": [0.5, 0.25],
            "full": [0.5, 0.75],
        },
        "decrease": {
            "dispersion": [0.0, 0.5],
            "fraction": {"1": [1.0, 0.9], "0.1": [1.0, 0.7]},
        },
    }
}
HEADS = {
    "problems": {
        "cars_like": {
            "methods": {
                "fgn": accuracies([0.25, 0.5]),
                "adam": accuracies([0.125, None]),
                "lbfgs": {},
            }
        }
    }
}
WORK = {
    "problems": {
        "cdr_work": {
            "curves": {
                "gnvpro": {
                    "work_units": [10, 20, 30],
                    "seconds": [1, 2, 4],
                    "train": [1.0, 0.5, 0.25],
                    "validation": [2.0, None, 0.5],
                    "level": [0, 1, 1],
                },
                "mlp_adam": {"seconds": [1, 2], "train": [1.0, 0.5]},
            }
        },
        "memory": {"methods": {}},
    }
}


@pytest.fixture
def ax():
    yield plt.subplots()[1]
    plt.close("all")


def drawn(ax):
    """The points of every curve, by its label."""
    return {line.get_label(): line.get_xydata().T.tolist() for line in ax.lines}


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_step_times_are_the_medians(ax):
    fgn.step_times(ax, MECHANISM, ["fgn", "adam"])
    assert drawn(ax) == {
        "FGN": [[2, 16], [0.25, 0.5]],
        "Adam": [[2, 16], [0.125, 0.25]],
    }
    fgn.step_times(ax, MECHANISM, ["mine"])
    np.testing.assert_array_equal(ax.lines[-1].get_ydata(), [1, np.nan])
    with pytest.raises(ValueError, match=r"no method 'lm'; it has \['adam', 'fgn'"):
        fgn.step_times(ax, MECHANISM, ["lm"])


def test_traces_and_their_gap(ax):
    fgn.curvature_traces(ax, MECHANISM)
    assert drawn(ax) == {
        "Full (SGN)": [[0, 0.5], [0.5, 0.75]],
        "Retained (FGN)": [[0, 0.5], [0.5, 0.25]],
    }
    (outline,) = ax.collections[0].get_paths()
    corners = {(0, 0.5), (0.5, 0.75), (0.5, 0.25)}
    assert corners <= {tuple(corner) for corner in outline.vertices}


def test_decreases_by_damping(ax):
    fgn.retained_decrease(ax, MECHANISM)
    assert drawn(ax) == {"1": [[0, 0.5], [1, 0.9]], "0.1": [[0, 0.5], [1, 0.7]]}


def test_accuracies_with_a_standard_deviation_to_both_sides(ax):
    fgn.accuracy_over_time(ax, HEADS, methods=["fgn"])
    assert drawn(ax) == {"FGN": [[1, 2], [0.25, 0.5]]}
    (outline,) = ax.collections[0].get_paths()
    corners = {(1, 0.25 - 0.1), (1, 0.25 + 0.1), (2, 0.5 - 0.2), (2, 0.5 + 0.2)}
    assert corners <= {tuple(corner) for corner in outline.vertices}
    fgn.accuracy_over_time(ax, HEADS, methods=["adam"])
    np.testing.assert_array_equal(ax.lines[-1].get_ydata(), [0.125, np.nan])
    with pytest.raises(ValueError, match="figure of 'lbfgs'"):
        fgn.accuracy_over_time(ax, HEADS, methods=["lbfgs"])
    with pytest.raises(ValueError, match=r"no problem 'mnist'; it has \['cars_like'\]"):
        fgn.accuracy_over_time(ax, HEADS, problem="mnist")


def test_curves_over_work_and_time(ax):
    words = {"quantity": "Relative error", "yscale": "log"}
    varpro.work_curves(ax, WORK, "cdr_work", x="work_units", **words)
    training, validation, mark = ax.lines  # the other counts no work
    assert training.get_xydata().T.tolist() == [[10, 20, 30], [1, 0.5, 0.25]]
    np.testing.assert_array_equal(validation.get_ydata(), [2, np.nan, 0.5])
    assert mark.get_xydata().tolist() == [[10, 1]]
    assert legend(ax) == ["GNvpro", "Training", "Validation", "Refinement"]
    ax.clear()
    varpro.work_curves(ax, WORK, "cdr_work", x="seconds", **words)
    assert legend(ax)[:2] == ["GNvpro", "mlp_adam"]
    assert ax.lines[0].get_xdata().tolist() == [1, 2, 4]
    with pytest.raises(ValueError, match="'memory' has no curves over 'seconds'"):
        varpro.work_curves(ax, WORK, "memory", x="seconds", **words)


def test_orders_of_the_expansions(ax):
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (60, 2))
    y = np.digitize(np.hypot(*X.T), (0.5, 0.9))
    theta = taylor.residual_parameters(rng, 2, width=3, depth=2)
    loose, tight = 1e-2, 1e-10
    errors = taylor.taylor_errors(
        *(X, y, taylor.residual_network, theta, rng),
        tolerances=(loose, tight),
        penalties=(1e-5, 1e-3),
    )
    steps = taylor.STEPS

    def order(errors, low, high):
        inside = (low <= steps) & (steps <= high)
        return np.polyfit(np.log(steps[inside]), np.log(errors[inside]), 1)[0]

    assert order(errors[tight][0], 1e-7, 1e-4) == pytest.approx(1, abs=0.1)
    assert order(errors[tight][1], 1e-4, 1e-2) == pytest.approx(2, abs=0.1)
    assert order(errors[loose][1], 1e-8, 1e-6) == pytest.approx(1, abs=0.1)
    taylor.expansions(ax, errors)
    assert set(drawn(ax)) >= {"0.01", "1e-10"}
