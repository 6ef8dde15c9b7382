"""Parts of the experiment beyond one machine and one fit."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from benchmarks._scale import devices, text


def test_bytes_are_those_of_the_results_of_collectives():
    program = """
      %x = f64[4,8]{1,0} all-reduce(%a), replica_groups={}
      %y = (f32[3]{0}, s32[]) all-reduce-start(%b, %c), replica_groups={}
      ROOT %z = f32[16,2]{1,0} all-gather(%d), dimensions={0}
      %w = f64[100]{0} add(%e, %f)
    """
    assert devices.collective_bytes(program) == 8 * 32 + 4 * 3 + 4 + 4 * 32


def test_the_fewest_iterations_are_found(monkeypatch):
    tried = []

    def timed_fit(model, X, y):
        tried.append(model.max_iter)
        return model.max_iter, 1.0

    monkeypatch.setattr(text, "timed_fit", timed_fit)
    monkeypatch.setattr(text, "objective", lambda n, *_: 1 + 2 * text.NEAR * 11 / n)
    found = text.first_near(LogisticRegression(), None, None, 1.0, 1.0)
    assert found["iterations"] == 22
    assert found["excess"] == pytest.approx(text.NEAR)
    assert len(tried) < 12


def test_objective_is_that_of_the_peers():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.array(list("abc"))[np.arange(60) % 3]
    model = LogisticRegression().fit(X, y)
    log_p = log_softmax(X @ model.coef_.T + model.intercept_, axis=1)
    penalty = np.sum(model.coef_**2) / 120
    expected = penalty - np.mean(log_p[np.arange(60), np.arange(60) % 3])
    assert text.objective(model, X, y, 1 / 60) == pytest.approx(expected, rel=1e-12)
