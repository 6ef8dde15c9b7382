"""Tables of two workers: default fits whose rows are summed where they live.

The rows are made by the workers whenever they are read, as from a disk that is never
the bottleneck, so what is measured is the fit, and the largest memory of the client and
of the workers; of a million rows and less, also the same fit in one process.
"""

import resource
import time
import warnings

import numpy as np

from benchmarks._report import progress, settings, summary
from sklearn_gn import SegmentedRegressor, ShallowReLURegressor, VarProNetRegressor
from sklearn_gn.data.tables import dask_rows

ROWS, FEATURES, BLOCK = 10_000_000, 20, 250_000
QUICK_ROWS, COMPARED = 20_000, 1_000_000  # up to these, also in one process


def run(args):
    """Fit three estimators on two workers."""
    from distributed import Client, LocalCluster

    n = args.rows or (QUICK_ROWS if args.quick else ROWS)
    models = [ShallowReLURegressor(random_state=0), VarProNetRegressor(random_state=0)]
    methods = {}
    test = block(10**6, 20_000)
    for model in [*models, SegmentedRegressor()]:
        name = type(model).__name__
        columns = 1 if isinstance(model, SegmentedRegressor) else FEATURES
        X, y, truth = test[0][:, :columns], test[1], law(test[0][:, :columns])
        progress(name)
        words = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
        with LocalCluster(**words) as cluster, Client(cluster) as client:
            arrays = rows(n, columns)
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = model.fit(*arrays).predict(X)
            seconds = time.perf_counter() - start
            workers = client.run(peak_gib)
        one = {
            "seconds": seconds,
            "r2_to_truth": 1 - np.mean((found - truth) ** 2) / truth.var(),
            "worker_peak_gib": max(workers.values()),
            "client_peak_gib": peak_gib(),
        }
        if n <= COMPARED:
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                here = model.fit_chunks(dask_rows(*arrays)).predict(X)
            one["seconds_of_one_process"] = time.perf_counter() - start
            one["largest_difference"] = np.abs(found - here).max() / y.std()
        methods[name] = {
            "settings": settings(model),
            "runs": [one],
            "summary": summary([one]),
        }
    return {
        "description": f"{n:,} x {FEATURES} rows on two workers of Dask "
        "(SegmentedRegressor: the first column), default settings",
        "methods": methods,
    }


def law(X):
    """The function that the rows follow, with a kink and a step."""
    kink = np.abs(X[:, 0] - 0.3)
    return kink if X.shape[1] == 1 else kink + X[:, 1] * X[:, 2] + (X[:, 3] > 0)


def block(number, size, columns=FEATURES):
    """Some rows: features, target."""
    rng = np.random.default_rng(number)
    X = rng.uniform(-1, 1, size=(size, columns))
    return X, law(X) + 0.2 * rng.standard_normal(size)


def rows(n, columns):
    """The rows as arrays of dask, made block by block."""
    import dask.array as da
    from dask import delayed

    sizes = [min(BLOCK, n - start) for start in range(0, n, BLOCK)]
    X, y = [], []
    for number, size in enumerate(sizes):
        made = delayed(block, pure=True)(number, size, columns)
        X.append(da.from_delayed(made[0], (size, columns), float))
        y.append(da.from_delayed(made[1], (size,), float))
    return da.concatenate(X), da.concatenate(y)


def peak_gib():
    """Largest resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
