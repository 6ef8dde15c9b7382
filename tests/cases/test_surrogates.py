"""VarProNetRegressor in place of computer models: smooth functions without noise.

What is bounded is the fraction of the variance of new points that is left unexplained;
bounds lie between today's and the best published of the same function and number of
points, or a Gaussian process. An expected failure says what goes wrong today.
"""

import numpy as np
import pytest
from scipy.stats import qmc

from sklearn_gn import VarProNetRegressor
from tests.cases.common import in_fresh_process

pytestmark = pytest.mark.filterwarnings("ignore")  # none is about what is asserted

# Each function takes points of the unit cube.


def welch(u):
    """Twenty inputs for screening: some enter strongly, two not at all."""
    x = u - 0.5
    linear = np.zeros(20)
    linear[[1, 2, 5, 6, 8, 9, 10]] = 0.05, 0.08, -0.03, 0.03, -0.09, -0.01, -0.07
    linear[[4, 13, 14, 16, 17, 18]] = 1, -0.04, 0.06, -0.01, -0.03, -5
    curved = 5 * x[:, 11] / (1 + x[:, 0]) + 5 * (x[:, 3] - x[:, 19]) ** 2
    return x @ linear + curved + 40 * x[:, 18] ** 3 + 0.25 * x[:, 12] ** 2


def hidden_cubic(u):
    """Nine linear inputs, and a cubic without a linear part in the tenth."""
    x = 2 * u - 1
    last = x[:, 9]
    return x[:, :9] @ np.linspace(0.2, 1, 9) + 4 * (last**3 - 0.6 * last)


def robot_arm(u):
    """Distance from shoulder to hand of a plane arm with four joints."""
    directions = np.exp(2j * np.pi * np.cumsum(u[:, :4], axis=1))
    return np.abs(np.sum(u[:, 4:] * directions, axis=1))


def wing_weight(u):
    low = np.array([150, 220, 6, -10, 16, 0.5, 0.08, 2.5, 1700, 0.025])
    high = np.array([200, 300, 10, 10, 45, 1, 0.18, 6, 2500, 0.08])
    area, fuel, aspect, sweep, pressure, taper, thickness, load, gross, paint = (
        low + u * (high - low)
    ).T
    cosine = np.cos(np.deg2rad(sweep))
    weight = 0.036 * area**0.758 * fuel**0.0035 * (aspect / cosine**2) ** 0.6
    weight *= pressure**0.006 * taper**0.04 * (100 * thickness / cosine) ** -0.3
    return weight * (load * gross) ** 0.49 + area * paint


def otl_circuit(u):
    """Output voltage of a push-pull amplifier without a transformer."""
    low = np.array([50, 25, 0.5, 1.2, 0.25, 50])
    high = np.array([150, 70, 3, 2.5, 1.2, 300])
    b1, b2, f, c1, c2, gain = (low + u * (high - low)).T
    gain = gain * (c2 + 9)
    base = 12 * b2 / (b1 + b2) + 0.74
    return (base * gain + 11.35 * f + 0.74 * f * gain / c1) / (gain + f)


def ishigami(u):
    x, y, z = np.pi * (2 * u - 1).T
    return np.sin(x) * (1 + 0.1 * z**4) + 7 * np.sin(y) ** 2


def surrogate(function, n_inputs, n, seed=0):
    """Fit n points of a Latin hypercube."""
    X = qmc.LatinHypercube(n_inputs, seed=np.random.default_rng(seed)).random(n)
    return VarProNetRegressor(random_state=seed).fit(X, function(X))


def unexplained(model, function, n_inputs):
    X = np.random.default_rng(99).random((5000, n_inputs))
    return np.mean((model.predict(X) - function(X)) ** 2) / np.var(function(X))


@pytest.mark.slow
def test_welch_with_1000_points():
    for seed in range(12):
        model = surrogate(welch, 20, 1000, seed)
        assert unexplained(model, welch, 20) <= 1e-3  # the best published is 4e-5


@pytest.mark.slow
def test_cubic_without_a_linear_part():
    for seed in range(4):
        model = surrogate(hidden_cubic, 10, 100, seed)
        assert unexplained(model, hidden_cubic, 10) <= 1e-4


def test_robot_arm_with_1000_points():
    assert unexplained(surrogate(robot_arm, 8, 1000), robot_arm, 8) <= 0.2


@pytest.mark.slow
def test_wing_weight_with_100_points():
    left = [
        unexplained(surrogate(wing_weight, 10, 100, seed), wing_weight, 10)
        for seed in range(6)
    ]
    assert np.mean(left) <= 4e-4, left  # a Gaussian process has 2.3e-4


@pytest.mark.slow
def test_seconds_of_1000_points_without_noise(tmp_path):
    run = in_fresh_process(
        """
import time
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from tests.cases.test_surrogates import otl_circuit, surrogate, unexplained

def seconds(task):
    start = time.process_time()
    result = task()
    return time.process_time() - start, result

took, model = seconds(lambda: surrogate(otl_circuit, 6, 1000))
X = np.random.default_rng(0).random((1000, 6))
peer = GaussianProcessRegressor(RBF(np.ones(6)), optimizer=None, normalize_y=True)
theta = peer.fit(X, otl_circuit(X)).kernel_.theta
evaluations = [
    seconds(lambda: peer.log_marginal_likelihood(theta, eval_gradient=True))[0]
    for _ in range(5)
]
print(took / np.median(evaluations), unexplained(model, otl_circuit, 6))
""",
        tmp_path,
    )
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])
    evaluations, left = map(float, run.stdout.split())
    assert left <= 6.4e-7  # the best published
    # With their gradient; a Gaussian process takes as many to find its length scales.
    assert evaluations <= 80


# -- Methods that do not exist yet, and may get other names


@pytest.mark.xfail(
    raises=AttributeError, strict=True, reason="no derivatives of predictions"
)
def test_derivative():
    model = surrogate(ishigami, 3, 300)
    X, h = np.random.default_rng(1).random((50, 3)), 1e-5
    ours = model.derivative(X)
    differences = [model.predict(X + e) - model.predict(X - e) for e in h * np.eye(3)]
    expected = np.column_stack(differences) / (2 * h)
    tolerance = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(np.reshape(ours, (50, 3)), expected, 0, tolerance)


@pytest.mark.xfail(raises=AttributeError, strict=True, reason="no sensitivity indices")
def test_sobol_indices():
    indices = surrogate(ishigami, 3, 500).sobol_indices()
    # Closed form of a + b of the function's 7 sin^2 and .1 x^4 sin.
    main = np.array([(1 + 0.1 * np.pi**4 / 5) ** 2 / 2, 7**2 / 8, 0])
    joint = 8 * 0.1**2 * np.pi**8 / 225 * np.array([1, 0, 1])  # first with third input
    variance = main.sum() + joint[0]
    np.testing.assert_allclose(indices.first_order, main / variance, 0, 0.01)
    np.testing.assert_allclose(indices.total_order, (main + joint) / variance, 0, 0.01)


@pytest.mark.xfail(
    raises=AttributeError, strict=True, reason="no joint samples of predictions"
)
def test_samples_of_the_surrogate():
    rng = np.random.default_rng(0)
    X = rng.random((200, 3))
    y = ishigami(X) + 0.3 * rng.normal(size=200)
    model = VarProNetRegressor(random_state=0).fit(X, y)
    Z = rng.random((20, 3))
    Z = np.concatenate([Z, Z + 1e-4])
    samples = model.sample_posterior(Z, n_samples=2000, random_state=0)
    assert np.shape(samples) == (40, 2000)
    mean, std = model.predict(Z, return_std=True)
    assert np.abs(samples.mean(axis=1) - mean).max() <= 5 * std.max() / np.sqrt(2000)
    np.testing.assert_allclose(samples.std(axis=1), std, rtol=0.15)
    # Each sample is a continuous function: neighbours move together.
    correlation = np.corrcoef(samples)[np.arange(20), np.arange(20, 40)]
    assert correlation.min() >= 0.99
