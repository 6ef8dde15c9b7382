"""Parts of the experiment beyond one machine and one fit."""

import json

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


@pytest.mark.parametrize(
    ("start", "most"), [(1, 10), (21, 2), (22, 2), (23, 4), (60, 12)]
)
def test_the_fewest_iterations_are_found(monkeypatch, start, most):
    tried = []

    def timed_fit(model, X, y):
        tried.append(model.max_iter)
        return model.max_iter, 1.0

    monkeypatch.setattr(text, "timed_fit", timed_fit)
    monkeypatch.setattr(text, "objective", lambda n, *_: 1 + 2 * text.NEAR * 11 / n)
    near = text.nearness(LogisticRegression(), None, None, 1.0, 1.0)
    found = text.first_near(near, np.inf, start)
    assert found["iterations"] == 22
    assert found["excess"] == pytest.approx(text.NEAR)
    assert len(tried) <= most
    # A peer that took twice our seconds has not arrived.
    assert text.first_near(near, 0.5, 3) == {**near(3)}


def test_a_search_begins_with_the_iterations_of_the_file(tmp_path):
    path = tmp_path / "scale.json"
    assert text.known_iterations(path, 1500, "saga") == 1
    runs = [{"iterations": 9}]
    row = {"description": "1,500 texts x 7", "methods": {"saga": {"runs": runs}}}
    path.write_text(json.dumps({"problems": {"text_some": row}}))
    assert text.known_iterations(path, 1500, "saga") == 9
    assert text.known_iterations(path, 1500, "lbfgs") == 1
    assert text.known_iterations(path, 500, "saga") == 1


def test_objective_is_that_of_the_peers():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.array(list("abc"))[np.arange(60) % 3]
    model = LogisticRegression().fit(X, y)
    log_p = log_softmax(X @ model.coef_.T + model.intercept_, axis=1)
    penalty = np.sum(model.coef_**2) / 120
    expected = penalty - np.mean(log_p[np.arange(60), np.arange(60) % 3])
    assert text.objective(model, X, y, 1 / 60) == pytest.approx(expected, rel=1e-10)
