import functools

import numpy as np
import pytest
from joblib import parallel_config
from scipy.optimize import minimize, root
from scipy.sparse.linalg import spsolve

from benchmarks import _dcr
from benchmarks._dcr import make_dcr
from sklearn_gn import datasets
from sklearn_gn.datasets import (
    _cdr,
    _toy,
    load_nile,
    load_udhr,
    load_us_employment,
    make_cdr,
    make_ellipse,
    make_peaks_classification,
)


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


# The annual flow of the Nile


def test_nile_is_the_published_series():
    X, y = load_nile(return_X_y=True)
    np.testing.assert_array_equal(X, np.arange(1871, 1971)[:, None])
    np.testing.assert_array_equal(y[:5], [1120, 1160, 963, 1210, 1160])
    np.testing.assert_array_equal(y[-3:], [718, 714, 740])
    # Mean, standard deviation and extremes, as the literature states them.
    assert y.mean() == pytest.approx(919.35, rel=1e-12)
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


# Convection, diffusion and reaction

coarse_cdr = functools.partial(make_cdr, n_nodes=6)


def weights(n_samples, seed=0):
    y = np.random.RandomState(seed).uniform(size=(n_samples, 55))
    return y / y.sum(axis=1, keepdims=True)


def test_cdr_matrices_are_those_of_linear_elements():
    n = 7
    x = _cdr.nodes(n)
    mass, stiffness, convection = _cdr.matrices(n)
    ones, close = np.ones(n * n), functools.partial(np.testing.assert_allclose)
    close(mass.sum(), 1)  # the area
    close(stiffness @ ones, 0, atol=1e-10)
    close(convection @ ones, 0, atol=1e-10)
    # Integrals of products of linear functions, and of their gradients.
    close(x.T @ (mass @ x), [[1 / 3, 1 / 4], [1 / 4, 1 / 3]])
    close(x.T @ (stiffness @ x), np.eye(2), atol=1e-10)
    close(convection @ x, mass @ _cdr.wind(x), atol=1e-10)
    # Inside, the stiffness matrix is the five-point star.
    row = stiffness.toarray()[n * n // 2].reshape(n, n)
    star = np.zeros((n, n))
    star[2:5, 3] = star[3, 2:5] = -1
    star[3, 3] = 4
    close(row, star, atol=1e-10)


def test_cdr_observes_linear_functions_exactly():
    points = np.random.RandomState(0).uniform(size=(50, 2))
    points[:3] = [[0, 0], [1, 1], [1, 0]]
    matrix = _cdr.interpolation(points, 8)
    np.testing.assert_allclose(matrix @ _cdr.nodes(8), points, atol=1e-10)
    assert matrix.data.min() > -1e-9
    at_nodes = _cdr.interpolation(_cdr._POINTS, 51)
    assert (np.sort(at_nodes.toarray(), axis=1)[:, -1] > 1 - 1e-9).all()


def test_cdr_reactions_set_in_and_saturate_where_they_should():
    r, slope = _cdr.reactions(_cdr._LEVELS)
    numbers = np.arange(55)
    np.testing.assert_allclose(r[_cdr._I, numbers], 1e-3)
    np.testing.assert_allclose(r[_cdr._J, numbers], 1 - 1e-3)
    assert (_cdr._I[:11] + 1).tolist() == [1] * 10 + [2]
    assert (_cdr._J[:11] + 1).tolist() == [*range(2, 12), 3]
    above, below = (_cdr.reactions(_cdr._LEVELS + e)[0] for e in (1e-5, -1e-5))
    np.testing.assert_allclose(slope, (above - below) / 2e-5, atol=1e-9)


def test_cdr_table_of_reactions():
    y = weights(3)
    u = np.random.RandomState(1).uniform(-100, 500, size=(3, 5000))
    exact = np.einsum("nuk,nk->nu", _cdr.reactions(u)[0], y)
    np.testing.assert_allclose(_cdr.tabulate_reactions(y)(u), exact, atol=1e-8)


def test_cdr_solution_that_is_known_is_approached_at_second_order():
    y = weights(1) / 10  # slow reactions: fast ones make small errors grow

    def solution(x, t):
        return 40 * t * (2 + np.cos(np.pi * x[:, 0]) * np.cos(np.pi * x[:, 1]))

    def source(x, t):  # linear in time: backward Euler adds no error
        c1, c2 = np.cos(np.pi * x).T
        s1, s2 = np.sin(np.pi * x).T
        gradient = -40 * t * np.pi * np.stack([s1 * c2, c1 * s2], axis=1)
        laplacian = -40 * t * 2 * np.pi**2 * c1 * c2
        reaction = _cdr.reactions(solution(x, t))[0] @ y[0]
        return (
            40 * (2 + c1 * c2)
            - 0.5 * laplacian
            + (_cdr.wind(x) * gradient).sum(axis=1)
            - _cdr.reaction_strength(x) * reaction
        )

    exact = np.stack([solution(_cdr._POINTS, t / 100) for t in _cdr._TIMES], axis=1)
    errors = [
        relative(_cdr.observe(y, n, 50, source), exact.reshape(1, -1))
        for n in (11, 21, 41)
    ]
    ratios = np.divide(errors[:-1], errors[1:])
    assert (np.abs(ratios - 4) < 0.5).all(), errors
    assert errors[-1] < 2e-3


def test_cdr_conserves_what_the_source_adds(monkeypatch):
    # Without wind and reactions the integral of u is that of f over time. It takes the
    # place of the observations.
    mass = _cdr.matrices(11)[0]
    monkeypatch.setattr(_cdr, "wind", np.zeros_like)
    monkeypatch.setattr(_cdr, "interpolation", lambda _, n: mass.sum(axis=0)[None])
    observed = _cdr.observe(np.zeros((1, 55)), 11, 50)
    added = [mass.sum(axis=0) @ _cdr.source(_cdr.nodes(11), k / 100) for k in range(51)]
    expected = np.cumsum(added)[39:] - added[0]
    np.testing.assert_allclose(observed[0], expected / 100, rtol=1e-8)


def test_cdr_agrees_with_newton_on_every_step():
    n, y = 6, weights(1)[0]
    x, matrices = _cdr.nodes(n), _cdr.matrices(n)
    mass, stiffness, convection = (matrix.toarray() for matrix in matrices)

    def residual(u, old, t):
        r, slope = _cdr.reactions(u)
        gain = _cdr.source(x, t) + _cdr.reaction_strength(x) * (r @ y)
        value = mass @ ((u - old) / 0.01 - gain) + (0.5 * stiffness + convection) @ u
        scale = _cdr.reaction_strength(x) * (slope @ y)
        return value, mass / 0.01 - mass * scale + 0.5 * stiffness + convection

    u, seen = np.zeros(n * n), []
    for k in range(1, 51):
        u = root(residual, u, args=(u, k / 100), jac=True, tol=1e-12).x
        if k >= 39:
            seen.append(_cdr.interpolation(_cdr._POINTS, n) @ u)
    observed = _cdr.observe(y[None], n, 50).reshape(6, 12)
    np.testing.assert_allclose(observed, np.transpose(seen), rtol=1e-7)


@pytest.mark.slow
def test_cdr_refined_meshes_and_steps_agree():
    by_mesh = [make_cdr(2, n_nodes=n, cache=False)[1] for n in (21, 41, 81)]
    coarse, fine = (relative(by_mesh[k], by_mesh[2]) for k in (0, 1))
    assert fine < 0.3 * coarse  # 1/5 at second order
    by_steps = [
        make_cdr(2, n_nodes=11, n_steps=n, cache=False)[1] for n in (50, 100, 200)
    ]
    differences = [relative(by_steps[k], by_steps[k + 1]) for k in (0, 1)]
    assert 1.7 < differences[0] / differences[1] < 2.3  # backward Euler: first order


def test_cdr_says_when_the_reactions_do_not_settle(monkeypatch):
    monkeypatch.setattr(_cdr, "_MAX_ITER", 2)
    with pytest.raises(RuntimeError, match=r"step 1 of 50 .* take more steps"):
        coarse_cdr(1, cache=False)


def test_cdr_interface():
    X, Y = coarse_cdr(8, cache=False)
    assert X.shape == (8, 55)
    assert Y.shape == (8, 72)
    np.testing.assert_allclose(X.sum(axis=1), 1)
    bunch = coarse_cdr(8, cache=False, return_X_y=False)
    np.testing.assert_array_equal(bunch.data, X)
    np.testing.assert_array_equal(bunch.target, Y)
    split = np.concatenate([bunch.train, bunch.validation, bunch.test])
    np.testing.assert_array_equal(split, range(8))
    assert [len(bunch[part]) for part in ("train", "validation", "test")] == [4, 2, 2]
    assert len(bunch.feature_names) == 55
    assert (bunch.feature_names[0], bunch.feature_names[-1]) == ("y_1,2", "y_10,11")
    assert bunch.target_names[13] == "u(0.6, 0.8; 0.40)"
    assert "6 x 6 nodes" in bunch.DESCR


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_nodes": 2}, "n_nodes"),
        ({"n_steps": 75}, "multiple of 50"),
    ],
)
def test_cdr_refuses(parameters, message):
    with pytest.raises(ValueError, match=message):
        make_cdr(**{"n_samples": 2, "n_nodes": 6, "cache": False, **parameters})


# Direct-current resistivity

coarse_dcr = functools.partial(make_dcr, shape=(8, 10, 6))
SHALLOW = (0.8, 0.25, 0.4)  # the steepest conductivity


def test_dcr_matrix_face_by_face():
    shape = (3, 4, 2)
    m = np.random.RandomState(0).uniform(1, 10, size=shape)
    widths = np.array([2 / 3, 2 / 4, 1 / 2])
    number = np.arange(24).reshape(shape)
    expected = np.zeros((24, 24))
    for cell in np.ndindex(shape):
        for axis in range(3):
            other = tuple(cell + np.eye(3, dtype=int)[axis])
            if other[axis] < shape[axis]:
                area = widths.prod() / widths[axis]
                flow = area / (widths[axis] / 2 * (1 / m[cell] + 1 / m[other]))
                i, j = number[cell], number[other]
                expected[[i, j], [i, j]] += flow
                expected[[i, j], [j, i]] -= flow
    np.testing.assert_allclose(_dcr.matrix(m).toarray(), expected, atol=1e-10)


def test_dcr_solution_that_is_known_is_approached_at_second_order():
    # u = cos(pi x1 / 2) cos(pi x2) cos(pi x3) with m = exp(cos(pi x2) / 2).
    errors = []
    for n in (8, 16, 32):
        x1, x2, x3 = np.meshgrid(
            *((np.arange(k) + 0.5) * w / k for k, w in ((n, 2), (n, 2), (n // 2, 1))),
            indexing="ij",
        )
        m = np.exp(np.cos(np.pi * x2) / 2)
        outer = np.cos(np.pi * x1 / 2) * np.cos(np.pi * x3)
        u = outer * np.cos(np.pi * x2)
        q = m * np.pi**2 * (2.25 * u - outer * np.sin(np.pi * x2) ** 2 / 2)
        q = (q - q.mean()) * 4 / m.size  # by volume
        errors.append(relative(_dcr.solve(m, q), u - u.mean()))
    ratios = np.divide(errors[:-1], errors[1:])
    assert (np.abs(ratios - 4) < 0.3).all(), errors


@pytest.mark.parametrize("y", [SHALLOW, (0.3, 1.0, 2.0), (0.5, 3.0, 1.0)])
def test_dcr_agrees_with_a_direct_solver(y):
    shape = (12, 12, 6)
    m, currents = _dcr.conductivity(y, shape), _dcr.source(shape)
    u = _dcr.solve(m, currents)
    matrix = _dcr.matrix(m).tocsc()
    direct = np.zeros(m.size)  # the last potential is held at 0
    direct[:-1] = spsolve(matrix[:-1, :-1], currents.ravel()[:-1])
    np.testing.assert_allclose(
        u.ravel(), direct - direct.mean(), rtol=0, atol=1e-7 * np.ptp(u)
    )
    assert abs(u.mean()) < 1e-10 * np.ptp(u)


def test_dcr_is_linear_and_reciprocal():
    shape = (8, 8, 4)
    m = _dcr.conductivity((0.6, 0.5, 1.0), shape)
    rng = np.random.RandomState(0)
    a, b = rng.normal(size=(2, *shape))
    a, b = a - a.mean(), b - b.mean()
    u, v = _dcr.solve(m, a), _dcr.solve(m, b)
    np.testing.assert_allclose(_dcr.solve(m, 2 * a - b), 2 * u - v, atol=1e-8)
    np.testing.assert_allclose((u * b).sum(), (v * a).sum())
    np.testing.assert_allclose(_dcr.solve(3 * m, a), u / 3, atol=1e-8)


def test_dcr_currents_and_receivers():
    for shape in [(8, 10, 6), (24, 24, 12), (9, 11, 2)]:
        currents = _dcr.source(shape)
        assert abs(currents.sum()) < 1e-10
        surface = currents[:, :, -1]
        assert not currents[:, :, :-1].any()
        # Centres of mass: the electrodes.
        x1, x2 = ((np.arange(n) + 0.5) * 2 / n for n in shape[:2])
        np.testing.assert_allclose((x1 @ surface).sum(), 0, atol=1e-10)
        np.testing.assert_allclose((surface @ x2).sum(), 10 / 6)
        np.testing.assert_allclose(x1 @ np.abs(surface).sum(axis=1), 2)
        for x, (value, difference) in zip((x1, x2), _dcr.receivers(shape), strict=True):
            np.testing.assert_allclose(value @ x, np.linspace(1 / 6, 11 / 6, 21))
            np.testing.assert_allclose(difference @ x, 1 / 12)
            np.testing.assert_allclose(difference.sum(axis=1), 0, atol=1e-10)


def test_dcr_symmetries():
    shape = (8, 8, 4)
    y = np.array([[0.7, 0.6, 0.0], [0.7, 0.6, 1.1], [0.7, 0.6, 1.1 + np.pi]])
    along_1, along_2 = (
        _dcr.observe(y, shape).reshape(3, 2, 21, 21).transpose(1, 0, 2, 3)
    )
    close = functools.partial(np.testing.assert_allclose, atol=1e-9)
    # Half a turn is no turn. Reflections in the axes, for the first ellipsoid.
    close(along_1[1], along_1[2])
    close(along_2[1], along_2[2])
    close(along_1[0], -along_1[0, ::-1])
    close(along_2[0], along_2[0, ::-1])
    close(along_1[0], -along_1[0, :, ::-1])
    close(along_2[0], along_2[0, :, ::-1])
    # Point reflection, for any.
    close(along_1[1], along_1[1, ::-1, ::-1])
    close(along_2[1], along_2[1, ::-1, ::-1])


def test_dcr_conductivity():
    m = _dcr.conductivity((0.5, 0.5, 0.0), (41, 41, 21))
    np.testing.assert_allclose(m.max(), np.exp(10))
    assert np.unravel_index(m.argmax(), m.shape) == (20, 20, 10)
    assert m[30, 20, 10] < m[20, 30, 10]  # shorter in x1
    turned = _dcr.conductivity((0.5, 0.5, np.pi / 2), (41, 41, 21))
    np.testing.assert_allclose(turned, m.transpose(1, 0, 2))


def test_dcr_homogeneous_ground_against_refined_meshes():
    potentials = []
    for n in (12, 24, 48, 96):
        shape = (n, n, n // 2)
        u = _dcr.solve(np.ones(shape), _dcr.source(shape))[:, :, -1]
        (value1, _), (value2, _) = _dcr.receivers(shape)
        potentials.append((value1 @ u @ value2.T)[:, 5:-5])  # not at the electrodes
    errors = [relative(u, potentials[-1]) for u in potentials[:-1]]
    assert errors[1] < 0.5 * errors[0]
    assert errors[2] < 0.3 * errors[1]
    assert errors[2] < 0.01


def test_dcr_says_when_it_does_not_converge(monkeypatch):
    monkeypatch.setattr(_dcr, "_MAX_ITER", 2)
    with pytest.raises(RuntimeError, match="did not reach a residual"):
        coarse_dcr(1, cache=False)


def test_dcr_interface():
    X, Y = coarse_dcr(20, cache=False)
    assert X.shape == (20, 3)
    assert Y.shape == (20, 882)
    assert (X >= [0, 0.25, 0]).all()
    assert (X <= [1, 3, np.pi]).all()
    bunch = coarse_dcr(20, cache=False, return_X_y=False)
    np.testing.assert_array_equal(bunch.target, Y)
    split = np.concatenate([bunch.train, bunch.validation, bunch.test])
    np.testing.assert_array_equal(split, range(20))
    assert [len(bunch[part]) for part in ("train", "validation", "test")] == [16, 2, 2]
    assert bunch.feature_names == ["height", "size", "angle"]
    assert len(bunch.target_names) == 882
    assert "8 x 10 x 6 cells" in bunch.DESCR


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (8, 8, 4.0), 8])
def test_dcr_refuses_shapes(shape):
    with pytest.raises(ValueError, match="shape must be three ints"):
        make_dcr(2, shape=shape, cache=False)


# Both: seeds, jobs, progress, results on disk

GENERATORS = [(coarse_cdr, _cdr), (coarse_dcr, _dcr)]
both = pytest.mark.parametrize(("make", "module"), GENERATORS, ids=["cdr", "dcr"])


@both
def test_same_seed_same_data(make, module):
    for first, again in zip(make(3, cache=False), make(3, cache=False), strict=True):
        np.testing.assert_array_equal(first, again)
    X = make(3, cache=False)[0]
    assert (make(3, random_state=1, cache=False)[0] != X).all()
    rng = np.random.RandomState(0)
    np.testing.assert_array_equal(make(3, random_state=rng)[0], X)


@both
def test_jobs_change_nothing(make, module, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 2)
    Y = make(5, cache=False)[1]
    with parallel_config(backend="threading"):
        by_two = make(5, n_jobs=2, cache=False)[1]
    monkeypatch.undo()
    for other in (by_two, make(5, cache=False)[1]):
        np.testing.assert_allclose(other, Y, rtol=1e-7, atol=1e-9)


@both
def test_progress(make, module, monkeypatch, capsys):
    make(3, cache=False)
    assert capsys.readouterr().out == ""
    make(3, cache=False, verbose=1)
    assert "3 of 3 samples" in capsys.readouterr().out
    monkeypatch.setattr(module, "_CHUNK", 1)
    make(3, cache=False, verbose=2)
    assert capsys.readouterr().out.count("of 3 samples") == 3


def forbid(monkeypatch, module):
    def computed(*args, **kwargs):
        raise AssertionError("computed again")

    monkeypatch.setattr(module, "observe", computed)


@both
def test_second_call_reads_from_disk(make, module, monkeypatch, tmp_path, capsys):
    first = make(3, data_home=tmp_path / "new" / "folder")
    (folder,) = (tmp_path / "new" / "folder").iterdir()
    forbid(monkeypatch, module)
    again = make(3, data_home=tmp_path / "new" / "folder", verbose=1)
    assert str(folder) in capsys.readouterr().out
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a.dtype, a.flags.c_contiguous) == (b.dtype, b.flags.c_contiguous)
    again[0][:] = 0  # what one caller changes, the next does not see
    np.testing.assert_array_equal(
        make(3, data_home=tmp_path / "new" / "folder", n_jobs=1)[0], first[0]
    )


@pytest.mark.parametrize(
    ("make", "module", "changed"),
    [
        (coarse_cdr, _cdr, {"n_samples": 4}),
        (coarse_cdr, _cdr, {"n_nodes": 7}),
        (coarse_cdr, _cdr, {"n_steps": 100}),
        (coarse_cdr, _cdr, {"random_state": 1}),
        (coarse_dcr, _dcr, {"shape": (10, 8, 6)}),
        (coarse_dcr, _dcr, {"random_state": 1}),
        (coarse_dcr, _dcr, {"cache": False}),
    ],
)
def test_other_parameters_are_computed(make, module, changed, monkeypatch, tmp_path):
    parameters = {"n_samples": 3, "data_home": tmp_path}
    make(**parameters)
    forbid(monkeypatch, module)
    make(**parameters)
    with pytest.raises(AssertionError, match="computed again"):
        make(**{**parameters, **changed})


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(0)])
def test_without_a_seed_nothing_is_stored(random_state, tmp_path):
    coarse_dcr(2, random_state=random_state, data_home=tmp_path)
    assert not list(tmp_path.iterdir())


def test_results_are_stored_in_the_data_folder_of_sklearn(monkeypatch, tmp_path):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    coarse_dcr(2)
    assert len(results(tmp_path / "sklearn_gn" / f"dcr_{_dcr._VERSION}")) == 1


DAMAGE = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "text": lambda content: b"a line of text",
    "middle": lambda content: content[:700] + bytes(100) + content[800:],
}


def results(folder):
    return list(folder.rglob("output.pkl"))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_file_is_made_again(damage, monkeypatch, tmp_path):
    Y = coarse_dcr(2, data_home=tmp_path)[1]
    (file,) = results(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    again = coarse_dcr(2, data_home=tmp_path)[1]  # joblib logs a warning
    np.testing.assert_allclose(again, Y, rtol=1e-9)
    forbid(monkeypatch, _dcr)
    np.testing.assert_array_equal(coarse_dcr(2, data_home=tmp_path)[1], again)


def test_data_are_returned_where_they_cannot_be_stored(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.warns(UserWarning, match="folder of stored results") as warned:
        X, _ = coarse_cdr(2, data_home=blocked)
    assert X.shape == (2, 55)
    assert warned[0].filename == __file__
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(blocked))
    with pytest.warns(UserWarning, match="folder of stored results"):
        coarse_cdr(2)


def test_a_write_that_fails_leaves_no_result(monkeypatch, tmp_path):
    def full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr("joblib.numpy_pickle.dump", full)
    with pytest.warns(Warning, match="No space left"):
        coarse_dcr(2, data_home=tmp_path)
    assert not results(tmp_path)


# Classes in the plane

TOYS = [make_peaks_classification, make_ellipse]


@pytest.mark.parametrize("make", TOYS, ids=lambda make: make.__name__)
def test_toys_are_balanced_and_reproducible(make):
    X, y = make(1003, random_state=0)
    assert X.shape == (1003, 2)
    assert y.dtype == int
    counts = np.bincount(y)
    assert counts.max() - counts.min() == 1
    assert (np.diff(y) != 0).sum() > 400  # shuffled
    for first, again in zip((X, y), make(1003, random_state=0), strict=True):
        np.testing.assert_array_equal(first, again)
    assert (make(1003, random_state=1)[0] != X).all()
    assert make()[0].shape == (5000, 2)


def test_peaks_classes_are_level_sets():
    lowest = minimize(lambda x: _toy.peaks(*x), (0.2, -1.6))
    highest = minimize(lambda x: -_toy.peaks(*x), (0, 1.6))
    np.testing.assert_allclose(_toy._LOWEST, lowest.fun, rtol=1e-9)
    np.testing.assert_allclose(_toy._HIGHEST, -highest.fun, rtol=1e-9)
    X, y = make_peaks_classification(2000, n_classes=7, random_state=0)
    assert np.abs(X).max() < 3
    level = (_toy.peaks(*X.T) - lowest.fun) / (-highest.fun - lowest.fun)
    np.testing.assert_array_equal(y, np.floor(7 * level))
    # Values that are printed everywhere.
    np.testing.assert_allclose(_toy.peaks(0, 0), 0.98101184312384, rtol=1e-12)


def test_ellipse_and_circle():
    angle = 0.3
    X, y = make_ellipse(2000, semi_axes=(0.9, 0.2), angle=angle, random_state=0)
    assert np.abs(X).max() < 1
    # Sum of the distances to the foci.
    focus = np.sqrt(0.9**2 - 0.2**2) * np.array([np.cos(angle), np.sin(angle)])
    way = sum(np.linalg.norm(X - f, axis=1) for f in (focus, -focus))
    np.testing.assert_array_equal(y, way > 1.8)
    # Uniform inside: second moments along the axes are quarters of squares.
    inside = make_ellipse(40_000, angle=0.0, random_state=0)
    moments = (inside[0][inside[1] == 0] ** 2).mean(axis=0)
    np.testing.assert_allclose(moments, [0.8**2 / 4, 0.4**2 / 4], rtol=0.03)
    X, y = make_ellipse(2000, semi_axes=(0.7, 0.7), random_state=0)
    np.testing.assert_array_equal(y, np.hypot(*X.T) > 0.7)


@pytest.mark.parametrize(
    ("make", "parameters", "message"),
    [
        (make_peaks_classification, {"n_classes": 1}, "n_classes"),
        (make_peaks_classification, {"n_samples": 4}, "n_samples"),
        (make_ellipse, {"semi_axes": 0.5}, "semi_axes must be two"),
        (make_ellipse, {"semi_axes": (0.5, 0.0)}, "semi_axes"),
        (make_ellipse, {"semi_axes": (1.5, 1.5)}, "Class 1 fills too little"),
        (make_ellipse, {"semi_axes": (1e-9, 1e-9)}, "Class 0 fills too little"),
    ],
)
def test_toys_refuse(make, parameters, message):
    with pytest.raises(ValueError, match=message):
        make(**{"n_samples": 100, **parameters})


def test_all_is_documented_and_sorted():
    assert datasets.__all__ == sorted(datasets.__all__)
    for name in datasets.__all__:
        assert "Returns\n" in getattr(datasets, name).__doc__


# Tables that come with the package


def test_employment_adds_up_to_its_sums():
    table = load_us_employment()
    assert table["month"].iloc[[0, -1]].dt.strftime("%Y-%m").tolist() == [
        "2006-01",
        "2015-12",
    ]
    parts = {
        "nonfarm": ["private", "government"],
        "manufacturing": ["durable_goods", "nondurable_goods"],
        "goods_producing": ["mining_and_logging", "construction", "manufacturing"],
    }
    for total, names in parts.items():
        np.testing.assert_allclose(table[names].sum(axis=1), table[total], atol=1)
    np.testing.assert_array_equal(
        table["nonfarm_change"][1:], table["nonfarm"].diff()[1:]
    )


def test_udhr_has_as_many_paragraphs_of_every_language():
    text, language = load_udhr(return_X_y=True)
    bunch = load_udhr()
    np.testing.assert_array_equal(bunch.data, text)
    np.testing.assert_array_equal(bunch.target, language)
    names, counts = np.unique(language.astype(str), return_counts=True)
    assert len(names) == 483
    assert set(counts) == {15}
    assert all(text)
    assert "born free and equal" in " ".join(text[language == "English"])
