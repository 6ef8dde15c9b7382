"""Points in pieces: the same numbers, and no program for more points."""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import PINNSolver
from sklearn_gn.arrays import backend
from sklearn_gn.linalg import jacobian as operators
from sklearn_gn.pde import Box, Dirichlet, Initial, Problem, Unknown, d
from sklearn_gn.pinn import pieces, residuals
from sklearn_gn.pinn.findings import concentration
from sklearn_gn.pinn.iteration import batch_of, losses_of_classes
from sklearn_gn.pinn.model import Batch, Model, start_parameters
from sklearn_gn.pinn.residuals import rows_and_sizes


def waves(u, x, c):
    """Two equations."""
    u, v = u["u"], u["v"]
    return d(u, "t")(x) - c * d(v, "x")(x), d(v, "t")(x) - u(x) * d(u, "x")(x)


def both(x):
    return jnp.array([jnp.sin(x[0]), 0.0])


PROBLEM = Problem(
    waves,
    Box(x=(0, 1), t=(0, 2)),
    [Initial(both), Dirichlet(0.0, on="x=min", outputs="v")],
    outputs=("u", "v"),
    coefficients={"c": Unknown(2.0)},
)


class Kind(NamedTuple):
    """A residual class of some outputs."""

    n_outputs: int


def cut(batches, *outputs, like=None):
    return pieces.cut([Kind(k) for k in outputs], batches, like)


def drawn(*sizes):
    x = np.arange(float(sum(sizes))).reshape(-1, 1, 1)
    parts = np.split(x, np.cumsum(sizes)[:-1])
    return tuple(Batch(a, 2 * a[:, 0], 1 + a[:, 0, 0]) for a in parts)


@pytest.mark.parametrize("sizes", [(10, 1, 6), (40, 7, 0), (64, 1, 1), (5, 5, 5)])
def test_each_point_is_in_one_piece(sizes, monkeypatch):
    monkeypatch.setattr(pieces, "_LEAST_RESIDUALS", 4)
    batches = drawn(*sizes)
    found = cut(batches, 1, 1, 1)
    for k, batch in enumerate(batches):
        own = [piece[k] for piece in found]
        assert len({part.x.shape for part in own}) == 1
        x, data, scale = (np.concatenate([part[i] for part in own]) for i in range(3))
        there = scale > 0
        np.testing.assert_array_equal(x[there], batch.x)
        np.testing.assert_array_equal(data[there], batch.data)
        np.testing.assert_array_equal(scale[there], batch.scale)
        # Others are points of the class too, at which its residual is defined.
        assert np.isin(x, batch.x).all()


@pytest.mark.parametrize("sizes", [(876, 375), (200, 1), (813, 77), (255, 1)])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_twice_the_points_are_twice_the_pieces_of_one_shape(sizes, n_outputs):
    shapes, counts = [], []
    for factor in (1, 2, 4, 8):
        found = cut(drawn(*[factor * n for n in sizes]), n_outputs, 2)
        shapes.append({tuple(batch.x.shape for batch in piece) for piece in found})
        counts.append(len(found))
    first = 0 if n_outputs * sizes[0] + 2 * sizes[1] >= 768 else 2
    assert all(shape == shapes[first] for shape in shapes[first:])
    assert counts[first:] == [2**k * counts[first] for k in range(4 - first)]
    assert all(len(shape) == 1 for shape in shapes)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("in_rows", [True, False])
@pytest.mark.repeats
def test_padding_changes_nothing(in_rows, monkeypatch):
    rng = np.random.RandomState(0)
    points = PROBLEM.sample(21, 10, rng, "uniform")
    net = start_parameters(rng, (2, 4, 2), PROBLEM.unknown.values())
    kinds, rows = PROBLEM.residual_classes(), rows_and_sizes(PROBLEM, net.extra)[0]
    batches = tuple(batch_of(*points[k.name], k.weight, "float64") for k in kinds)
    rows = rows if in_rows else [None] * len(kinds)
    model = Model(
        PROBLEM,
        ("tanh",),
        tuple(k._replace(rows=r) for k, r in zip(kinds, rows, strict=False)),
    )

    def found():
        _, given, r, (part,) = pieces.linear_system(model, net, batches)
        return (
            r,
            part.dense,
            part.extra,
            pieces.residuals(model, net, given),
            pieces.class_residuals(model, model.classes[0], net, batches[0]),
            losses_of_classes(model, net, batches).sum(),
        )

    whole = found()
    assert all(len(cut) % 4 for cut in (batches[0].x, batches[1].x))
    monkeypatch.setattr(pieces, "_LEAST_RESIDUALS", 12)
    assert len(pieces.cut(model.classes, batches)) == 4
    for one, other in zip(whole, found(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)
    # They are those of all points at once.
    r = jax.jit(residuals.residuals, static_argnums=0)(model, net, batches)
    np.testing.assert_allclose(whole[-1], 0.5 * np.sum(np.square(r)), rtol=1e-10)
    r, parts = jax.jit(residuals.jacobian, static_argnums=0)(model, net, batches)
    np.testing.assert_allclose(whole[0], r, rtol=1e-10, atol=1e-11)
    (part,) = operators.multiplied_out(backend.views(parts))
    np.testing.assert_allclose(whole[1], part.dense, rtol=1e-10, atol=1e-11)


def bent(u, x):
    return d(u, "x", "x")(x) + jnp.sin(3 * x[0] * x[1]) + d(u, "y", "y")(x) * u(x)


@pytest.mark.slow
def test_more_points_compile_nothing(compiled, monkeypatch):
    monkeypatch.setattr(pieces, "_LEAST_RESIDUALS", 256)

    def fit(factor):
        solver = PINNSolver(
            Problem(bent, Box(x=(0, 1), y=(0, 1)), [Dirichlet(0.0)]),
            hidden_layer_sizes=(5,),
            n_interior=250 * factor,
            n_boundary=101 * factor,
            max_iter=4,
            resample=2,
            sampling="residual",
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return solver.fit()

    jax.clear_caches()
    solver = fit(1)
    assert solver.error_estimate_ > 0
    concentration(solver)  # which a warning may compute
    compiled.clear()
    assert fit(4).error_estimate_ > 0
    assert compiled == []


def test_points_that_cannot_be_shared_evenly_have_the_same_pieces():
    shapes = {
        tuple(len(batch.x) for batch in piece)
        for sizes in ((876, 188, 187), (1752, 375, 375), (3504, 750, 750))
        for piece in cut(drawn(*sizes), 1, 1, 1)
    }
    assert shapes == {(896, 192, 192)}


def test_pieces_like_those_of_other_points():
    batches, like = drawn(3000, 70), drawn(800, 40)
    assert len(cut(like, 2, 1)) == 2
    found = cut(batches, 2, 1, like=like)
    assert len(found) == 8
    assert {tuple(len(b.x) for b in piece) for piece in found} == {(400, 20)}
    few = cut(drawn(30, 10), 2, 1, like=like)
    assert [len(b.x) for b in few[0]] == [400, 20]
    assert (few[0][0].scale > 0).sum() == 30
