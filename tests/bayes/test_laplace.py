"""Error bars against dense formulas and against scikit-learn's Bayesian regression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sklearn_gn.bayes import laplace
from sklearn_gn.bayes.laplace import PseudoInverse

pytestmark = pytest.mark.usefixtures("float64")

# Compiled, since every operation outside a compiled function is compiled on its own.
factor_with_floor = jax.jit(laplace.factor_with_floor, static_argnames="ulps")
effective_parameters = jax.jit(lambda root, matrix: jnp.trace(root.solve(matrix)))
variances = jax.jit(lambda root, rows: root.variances(rows.T))
ULPS = 10


def draw(*shape, seed=0):
    return np.random.RandomState(seed).standard_normal(shape)


@pytest.mark.parametrize("penalised", [False, True])
def test_variances_and_parameters_are_those_of_the_dense_inverse(penalised):
    jacobian, t = draw(30, 6), draw(4, 6, seed=1)
    matrix = jacobian.T @ jacobian
    penalty = np.diag(np.arange(1.0, 7)) if penalised else None
    inverse = np.linalg.inv(matrix + (penalty if penalised else 0))
    root = factor_with_floor(np.asarray(matrix), penalty, ulps=ULPS)
    np.testing.assert_allclose(
        variances(root, np.asarray(t)), np.diag(t @ inverse @ t.T), rtol=1e-10
    )
    expected = np.trace(inverse @ matrix)
    np.testing.assert_allclose(effective_parameters(root, matrix), expected)
    if not penalised:
        assert expected == pytest.approx(6)


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (6, 6)])
@pytest.mark.parametrize("size", [1.0, 1e-170])
def test_pseudo_inverse_from_either_gramian(shape, size):
    jacobian, t = size * draw(*shape), size * draw(3, shape[1], seed=1)

    @jax.jit
    def influence(jacobian, t):
        inverse = PseudoInverse.of(jacobian)
        return inverse.factor.root, inverse.influence(t), inverse.leverages(slice(1, 4))

    root, found, leverages = influence(jacobian, t)
    assert root.shape == (min(shape),) * 2
    pseudo = np.linalg.pinv(jacobian)
    np.testing.assert_allclose(found, t @ pseudo, rtol=1e-8, atol=1e-10)
    expected = np.diagonal(jacobian @ pseudo)[1:4]
    np.testing.assert_allclose(leverages, expected, rtol=1e-8)
