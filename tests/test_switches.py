"""Switches of the automatic mechanisms, which the ablation benchmark turns."""

import ast
from pathlib import Path

import numpy as np
import pytest

import sklearn_gn
from benchmarks._ablation import ROOMS, SWITCHES
from sklearn_gn import FGNSoftmaxHead, ShallowReLURegressor
from sklearn_gn import _switches as switches
from sklearn_gn.pinn.enrichment import FAMILIES


@pytest.fixture(autouse=True)
def fresh_switches(monkeypatch):
    monkeypatch.setattr(switches, "off", set())
    monkeypatch.setattr(switches, "asked", set())


def names_in_source():
    """Names that the package asks for, as they are written."""
    texts = (p.read_text() for p in Path(sklearn_gn.__file__).parent.rglob("*.py"))
    for text in texts:
        for node in ast.walk(ast.parse(text)) if "switches." in text else ():
            function = getattr(node, "func", None)
            module = getattr(getattr(function, "value", None), "id", None)
            if module != "switches":
                continue
            if isinstance(node.args[0], ast.JoinedStr):  # of families of functions
                yield from (f"pinn.{name}" for name in FAMILIES)
            else:
                yield node.args[0].value


def test_the_benchmark_explains_exactly_the_switches_that_are_asked():
    assert set(names_in_source()) == set(SWITCHES)
    for name, text in SWITCHES.items():
        assert name.split(".")[0] in ROOMS
        assert " Off: " in text
        assert text.endswith((".", ".)"))


def test_a_mechanism_that_finds_nothing_does_not_ask():
    assert switches.kept("a", ()) == ()
    assert switches.asked == set()
    assert switches.kept("a", (1, 2)) == (1, 2)
    switches.off.add("a")
    assert switches.kept("a", (1, 2)) == ()
    assert not switches.on("a")
    assert switches.on("b")
    assert switches.asked == {"a", "b"}


def test_without_temperature_logits_are_those_of_the_coefficients():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 6
    X = rng.normal(size=(6, 20))[y] + rng.normal(size=(60, 20))
    assert FGNSoftmaxHead().fit(X, y).temperature_ < 0.99
    assert "heads.temperature" in switches.asked
    switches.off.add("heads.temperature")
    model = FGNSoftmaxHead().fit(X, y)
    assert model.temperature_ == 1
    assert model.alpha_method_ == "left-out"


def test_without_a_linear_model_kinks_follow_noise():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(100, 3))
    y = X.sum(axis=1) + 0.5 * rng.normal(size=100)

    def n_neurons():
        return len(ShallowReLURegressor(random_state=0).fit(X, y).hyperplanes_)

    assert n_neurons() == 0
    assert "tables.linear_member" in switches.asked
    switches.off.add("tables.linear_member")
    assert n_neurons() > 0
