"""Searches over damping and rank with all joblib backends, and with clusters."""

from contextlib import contextmanager

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
)

from sklearn_gn import FGNSoftmaxHead, VarProNetRegressor

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:joblib"),
]

rng = np.random.RandomState(0)
X = rng.randn(96, 3)
Y = np.abs(X[:, 0]) + 0.1 * rng.randn(96)
LABELS = np.digitize(Y, [0.3, 1.0])
GRID = {"damping": [0.5, 1.0], "rank": [1, 2]}
HEAD = FGNSoftmaxHead("fgn", max_iter=3, random_state=0)
NETWORK = VarProNetRegressor(
    hidden_layer_sizes=(3,), alpha=(1e-2, 1e-4), max_iter=3, random_state=0
)


def searches():
    """One of each kind; the second and third over a few of the candidates."""
    some = {"n_iter": 2, "random_state": 0}
    return {
        "grid": GridSearchCV(HEAD, GRID, cv=2),
        "random": RandomizedSearchCV(NETWORK, GRID, cv=2, **some),
        "halving": HalvingGridSearchCV(
            HEAD, GRID, cv=2, factor=2, min_resources=48, random_state=0
        ),
    }


def results():
    """Scores of all candidates, and the predictions of the best, as bytes."""
    found = {}
    for name, search in searches().items():
        search.fit(X, Y if name == "random" else LABELS)
        method = "predict" if name == "random" else "predict_proba"
        best = getattr(search.best_estimator_, method)(X)
        scores = search.cv_results_["mean_test_score"]
        found[name] = scores.tobytes(), np.asarray(best).tobytes()
    return found


@pytest.fixture(scope="module")
def expected():
    return results()


@pytest.mark.cluster
def test_threads_give_what_one_job_gives(expected):
    with joblib.parallel_config("threading", n_jobs=2):
        assert results() == expected


@pytest.mark.cluster
def test_processes_give_the_same_and_read_what_is_compiled_from_disk(expected):
    def events_of_a_fit():  # in a worker that has fitted nothing yet
        import jax

        names = []
        jax.monitoring.register_event_listener(lambda name, **about: names.append(name))
        clone(HEAD).fit(X, LABELS)
        return [name for name in names if name.startswith("/jax/compilation_cache/")]

    with joblib.parallel_config("loky", n_jobs=2):
        for events in joblib.Parallel()(
            joblib.delayed(events_of_a_fit)() for _ in "ab"
        ):
            assert "/jax/compilation_cache/cache_misses" not in events
            assert events
        assert results() == expected


@contextmanager
def dask_backend():
    from distributed import Client, LocalCluster

    words = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**words) as cluster, Client(cluster):
        yield joblib.parallel_config("dask")


@contextmanager
def ray_backend():
    import ray
    from ray.util.joblib import register_ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=2**27,
        log_to_driver=False,
    )
    try:
        register_ray()
        yield joblib.parallel_config("ray", n_jobs=2)
    finally:
        ray.shutdown()


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")  # of the clusters' own
@pytest.mark.parametrize("cluster", [dask_backend, ray_backend])
def test_clusters_give_what_one_job_gives(expected, cluster, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else they wait for all others
    with cluster() as backend, backend:
        assert results() == expected
