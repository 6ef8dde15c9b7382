"""The guides of differential equations: their snippets run and state what they say."""

import re
import textwrap
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.pde import Condition, Field, Problem

DOC = Path(__file__).parents[2] / "doc"
pytestmark = [
    pytest.mark.skipif(not DOC.exists(), reason="needs the source tree"),
    pytest.mark.usefixtures("float64"),
]
SHORT = "hidden_layer_sizes=(6,), n_interior=40, n_boundary=16, max_iter=2"


def blocks_of(page):
    """Python blocks of a page; indented ones too."""
    text = (DOC / page).read_text()
    block = r"^( *)\.\. code-block:: python\n\n((?:\1 +.*\n|\n)+)"
    return [textwrap.dedent(code) for _, code in re.findall(block, text, re.M)]


def run(blocks, namespace):
    for block in blocks:
        exec(compile(block.replace("max_time=60", SHORT), "guide", "exec"), namespace)


def exact_residuals(problem):
    """Largest residual of each class at the exact solution."""
    scalar = len(problem.outputs) == 1
    shape = () if scalar else (len(problem.outputs),)
    field = Field(
        lambda x: jnp.reshape(problem.exact(x), shape),
        problem.domain.axes,
        problem.domain.time,
        problem.outputs,
    )
    points = problem.probes(4, np.random.RandomState(0))
    kinds = problem.residual_classes()

    @jax.jit
    def all_of(points):
        return [
            jax.vmap(
                lambda x, e, kind=kind: kind.function(
                    (field,) * kind.n_points, x, e, problem.start
                )
            )(points[kind.name].x, points[kind.name].data)
            for kind in kinds
        ]

    return [float(np.abs(values).max()) for values in all_of(points)]


@pytest.mark.slow
def test_ten_problems_of_deepxde():
    """Each is sound, and its exact solution fulfils equation and conditions."""
    blocks, namespace, n_checked = blocks_of("coming_from_deepxde.rst"), {}, 0
    theirs = [block for block in blocks if "dde" in block or "train(" in block]
    ours = [block for block in blocks if block not in theirs]
    assert len(theirs) == 11
    assert len(ours) == 11
    for block in theirs:
        compile(block, "guide", "exec")
    run(ours[:1], namespace)
    for block in ours[1:]:
        run([block], namespace)
        problem = namespace["problem"]
        if problem.exact is None:
            problem.check()
            continue
        assert max(exact_residuals(problem)) < 1e-9
        n_checked += 1
    assert n_checked == 8


def test_snippets_of_the_first_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    blocks = blocks_of("user_guide/pinn.rst")
    assert len(blocks) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(blocks, namespace)
    assert namespace["best"].n_iter_ == 2
    assert set(namespace["inverse"].coefficients_) == {"kappa"}
    assert namespace["long"].n_iter_ == 2


GUIDES = [
    "odes",
    pytest.param("inverse", marks=pytest.mark.slow),
    "conditions",
    "right",
]


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.repeats
def test_snippets_of_the_guide(guide):
    namespace = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(blocks_of(f"user_guide/pinn_{guide}.rst"), namespace)
    if guide == "odes":
        assert namespace["angle"].shape == namespace["velocity"].shape == (61,)
    elif guide == "inverse":
        low, high = namespace["interval"]
        assert low < namespace["rate"] < high
        assert namespace["y"].shape == (5, 2)
        # By finite differences on 8001 points.
        assert namespace["energy"] == pytest.approx(1.060362, rel=1e-4)
    elif guide == "conditions":
        points, _ = namespace["ring"].sample_face(
            "sphere (2)", 8, np.random.RandomState(0)
        )
        np.testing.assert_allclose(np.hypot(*points.T), 0.3, rtol=1e-12)
    elif guide == "right":
        assert namespace["difference"] > 0
        assert namespace["error"] > 0
        X = namespace["X"]
        values = jax.jit(jax.vmap(namespace["wanted"]))(X)
        close = namespace["known"].exact_values(X)[:, 0]
        np.testing.assert_allclose(values, close, rtol=1e-10)
    for value in list(namespace.values()):
        if isinstance(value, Problem):
            n_interfaces = int(value.regions is not None)
            n_classes = 1 + len(value.conditions) + n_interfaces
            assert len(value.residual_classes()) == n_classes
        elif isinstance(value, Condition):
            assert value.own_number in (None, 1, 2)
