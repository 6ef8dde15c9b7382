import numpy as np

from sklearn_gn.datasets import load_nile


def test_nile_is_the_published_series():
    X, y = load_nile(return_X_y=True)
    np.testing.assert_array_equal(X, np.arange(1871, 1971)[:, None])
    np.testing.assert_array_equal(y[:5], [1120, 1160, 963, 1210, 1160])
    np.testing.assert_array_equal(y[-3:], [718, 714, 740])
    # Mean, standard deviation and extremes, as the literature states them.
    assert y.mean() == 919.35
    assert abs(y.std(ddof=1) - 169.2275) < 1e-4
    assert (X[y.argmin(), 0], y.min()) == (1913, 456)
    assert (X[y.argmax(), 0], y.max()) == (1879, 1370)


def test_nile_as_bunch():
    nile = load_nile()
    X, y = load_nile(return_X_y=True)
    np.testing.assert_array_equal(nile.data, X)
    np.testing.assert_array_equal(nile.target, y)
    assert nile.feature_names == ["year"]
    assert nile.target_names == ["volume"]
    assert "Cobb" in nile.DESCR


def test_nile_arrays_are_fresh():
    X, y = load_nile(return_X_y=True)
    X[:], y[:] = 0, 0
    assert load_nile().data.min() == 1871
    assert load_nile().target.min() == 456
