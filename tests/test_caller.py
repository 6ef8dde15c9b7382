"""Warnings point to the line of the caller, however deep in the package they arise."""

import warnings

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import SegmentedRegressor, ShallowReLURegressor
from sklearn_gn.callbacks import Checkpoint

X = np.linspace(0, 1, 6)[:, None]
y = np.array([0, 1, 0, 1, 1, 0.0])
half = np.full(6, 0.5)  # less rows than parameters


def quietly(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y, half)


def segmented():
    return quietly(SegmentedRegressor(2, min_rows=1))


def shallow():
    return quietly(ShallowReLURegressor(3, alpha=0, random_state=0))


def saved(path):
    model = ShallowReLURegressor(1, random_state=0)
    model.set_callbacks(Checkpoint(path / "fit.ckpt", resume=False))
    return model


CALLS = {
    "room": lambda: SegmentedRegressor(5).fit(X, y),
    "room, in a pipeline": lambda: make_pipeline(
        StandardScaler(), SegmentedRegressor(5)
    ).fit(X, y),
    "noise": lambda: segmented().predict(X, return_std=True),
    "noise, of an interval": lambda: segmented().predict_interval(X),
    "noise of a network": lambda: shallow().predict(X, return_std=True),
    "noise of a network, of an interval": lambda: shallow().predict_interval(X),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_warnings_point_to_the_caller(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    assert seen
    assert {warning.filename for warning in seen} == {__file__}


def test_a_checkpoint_that_cannot_be_written_points_to_the_fit(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError("full")

    monkeypatch.setattr("sklearn_gn.runtime.checkpoint.save", refuse)
    with pytest.warns(UserWarning, match="could not be written") as seen:
        saved(tmp_path).fit(X, y)
    assert {warning.filename for warning in seen} == {__file__}
