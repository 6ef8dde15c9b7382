"""A head on features that do not fit into memory: an epoch of a file on disk.

The file is made of random features, deleted after the run. An epoch is compared with
what bounds it: reading the file once, and the products of matrices that the method
takes for each row (logits, gradient, and the Gram matrix of its mini-batch).
"""

import os
import resource
import shutil
import threading
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks._report import progress, settings, summary, target
from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.data.tables import MappedRows
from sklearn_gn.solvers import FGN

ROWS, FEATURES, CLASSES = 1_300_000, 2_048, 1_000
QUICK_ROWS = 20_000
BATCH = 256
BLOCK = 16_384  # rows that are made at a time
SHARE = 0.7  # of the rate that binds
MOST_GIB = 8  # of anonymous memory


def run(args):
    """Train on the file for an epoch; the rates of the disk and of the products."""
    n = args.rows or (QUICK_ROWS if args.quick else ROWS)
    args.data.mkdir(parents=True, exist_ok=True)
    path = args.data / "out_of_core.f32"
    needed = 4 * n * FEATURES
    if shutil.disk_usage(args.data).free < 1.2 * needed:
        raise RuntimeError(f"{args.data} has no room for {needed / 1e9:.1f} GB.")
    try:
        y = make(path, n)
        found = epoch(path, y)
    finally:
        path.unlink(missing_ok=True)
    methods = {"fgn": {"settings": settings(model()), "runs": [found]}}
    methods["fgn"]["summary"] = summary([found])
    return {
        "description": f"{n:,} x {FEATURES:,} single-precision features "
        f"({needed / 1e9:.1f} GB) of {CLASSES:,} classes, an epoch in chunks",
        "methods": methods,
        "target_rate": target(
            methods, "fgn", "share_of_bound", "median", at_least=SHARE
        ),
        "target_memory": target(methods, "fgn", "anonymous_gib", "max", MOST_GIB),
    }


def model():
    """The head that is trained."""
    solver = FGN(batch_size=BATCH)
    return FGNSoftmaxHead(solver, dtype="float32", max_iter=1, random_state=0)


def make(path, n):
    """Write features with a shift for each class; return the labels."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(CLASSES, FEATURES)).astype(np.float32) / 8
    y = rng.integers(CLASSES, size=n)
    X = np.memmap(path, np.float32, "w+", shape=(n, FEATURES))
    for start in range(0, n, BLOCK):
        part = slice(start, start + BLOCK)
        noise = rng.standard_normal((len(y[part]), FEATURES), np.float32)
        X[part] = noise + centers[y[part]]
        progress("made", part.stop)
    X.flush()
    return y


def epoch(path, y):
    """Figures of an epoch."""
    n = len(y)
    X = np.memmap(path, np.float32, "r", shape=(n, FEATURES))
    drop_cache(path)
    start = time.perf_counter()
    for chunk, _ in MappedRows(X, y):
        chunk.sum()
    read = time.perf_counter() - start
    fitted = model()
    with warnings.catch_warnings(), Watch() as watch:
        warnings.simplefilter("ignore", ConvergenceWarning)
        drop_cache(path)
        start = time.perf_counter()
        fitted.fit_chunks(MappedRows(X, y), classes=np.arange(CLASSES))
        seconds = time.perf_counter() - start
    first = float(fitted.convergence_log_["time"][0])
    products = n * seconds_of_products() / BATCH
    return {
        "epoch_seconds": first,
        "read_seconds": read,
        "product_seconds": products,
        "share_of_bound": max(read, products) / first,
        "read_gb_per_s": X.nbytes / read / 1e9,
        "product_gflops": n * flops_of_a_row() / products / 1e9,
        "fit_seconds": seconds,
        "anonymous_gib": watch.largest / 2**30,
        "peak_resident_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "loss": fitted.loss_,
    }


def flops_of_a_row():
    """Multiplications and additions of logits, gradient, and Gram matrices."""
    return 2 * (2 * FEATURES * CLASSES + BATCH * (FEATURES + CLASSES))


def seconds_of_products():
    """Seconds of the products of one mini-batch, the median of several."""

    @jax.jit
    def products(x, w, error):
        return x @ w, x.T @ error, x @ x.T, error @ error.T

    rng = np.random.default_rng(0)
    shapes = (BATCH, FEATURES), (FEATURES, CLASSES), (BATCH, CLASSES)
    arrays = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]
    jax.block_until_ready(products(*arrays))
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        jax.block_until_ready(products(*arrays))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def drop_cache(path):
    """Ask the system to forget the pages of a file, where it can be asked."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Watch:
    """The largest anonymous memory of this process while the context is open."""

    def __enter__(self):
        self.largest, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self):
        while not self._done.wait(0.1):
            lines = Path("/proc/self/status").read_text().splitlines()
            kib = (int(x.split()[1]) for x in lines if x.startswith("RssAnon"))
            self.largest = max(self.largest, 1024 * next(kib, 0))

    def __exit__(self, *error):
        self._done.set()
        self._thread.join()
