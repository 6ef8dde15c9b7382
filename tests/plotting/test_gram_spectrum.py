import copy

import numpy as np
import pytest
from sklearn.base import clone

from sklearn_gn.plotting import GramSpectrumDisplay
from sklearn_gn.solvers import JointGN


def test_the_spectrum_is_that_of_the_estimator(model_1d):
    display = GramSpectrumDisplay.from_estimator(model_1d)
    (gram,) = display.lines_
    np.testing.assert_array_equal(gram.get_ydata(), model_1d.gram_spectrum_)
    np.testing.assert_array_equal(
        gram.get_xdata(), 1 + np.arange(len(model_1d.gram_spectrum_))
    )
    assert display.ax_.get_yscale() == "log"


def test_truncation_is_drawn_where_something_is_below():
    spectrum = np.array([2.0, 1.0, 1e-7])
    display = GramSpectrumDisplay(gram_spectrum=spectrum, truncation=1e-6).plot()
    (line,) = display.truncation_lines_
    np.testing.assert_array_equal(line.get_ydata(), [2e-6, 2e-6])
    display = GramSpectrumDisplay(gram_spectrum=spectrum, truncation=1e-8).plot()
    assert display.truncation_lines_ == []


@pytest.mark.parametrize(
    ("rank_tol", "dtype", "expected"),
    [(1e-3, "float64", 1e-3), (1e-12, "float32", np.finfo("float32").eps)],
)
def test_truncation_is_that_of_the_solver(model_1d, rank_tol, dtype, expected):
    model = copy.copy(model_1d)
    model.set_params(solver=JointGN(rank_tol=rank_tol), dtype=dtype)
    display = GramSpectrumDisplay.from_estimator(model)
    assert display.truncation == pytest.approx(float(expected) ** 2, rel=1e-6)


def test_zero_eigenvalues_are_counted():
    spectrum = np.array([1.0, 0.1, 0.0, 0.0])
    display = GramSpectrumDisplay(gram_spectrum=spectrum).plot()
    display.figure_.canvas.draw()
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["Gauss-Newton matrix (2 of 4 are zero)"]
    assert 0.01 < display.ax_.get_ylim()[0] < 0.1


def test_constant_target_leaves_an_empty_spectrum(model_1d, data_1d):
    X, y = data_1d
    model = clone(model_1d).fit(X, np.ones_like(y))
    display = GramSpectrumDisplay.from_estimator(model)
    display.figure_.canvas.draw()
    assert len(model.gram_spectrum_) == 0
    assert display.lines_ == []
    assert not display.ax_.axison
    (text,) = display.ax_.texts
    assert "the model is linear" in text.get_text()


def test_a_solver_without_a_matrix_has_no_spectrum():
    display = GramSpectrumDisplay(gram_spectrum=np.zeros(0)).plot()
    (text,) = display.ax_.texts
    assert "the solver forms none" in text.get_text()
