"""Searches: 5 folds x 12 candidates of each estimator, and of a scikit-learn peer.

GridSearchCV over damping and rank (numbers of breakpoints for SegmentedRegressor), with
one job and with one a core, against the same number of candidates of MLPRegressor,
MLPClassifier or LogisticRegression on the same rows. The first search compiles, with an
empty cache on disk; the second is made in the same process. A row is written when it is
complete, and a file is continued where it ends; ``--only`` takes names of estimators.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import joblib

from benchmarks._report import progress, summary
from benchmarks._searches import FOLDS, PEERS

QUICK = ("SegmentedRegressor",)
NOTES = [
    "compilations are those of the process that searches, programs those that all of "
    "its workers have compiled and share through the cache on disk.",
    "The peers' grids are over alpha and the learning rate, or over C: twelve "
    "candidates too, at the peers' default sizes.",
]


def run(args):
    problems = _known(args.out)
    for name in args.only or (QUICK if args.quick else PEERS):
        methods = problems.get(name, {}).get("methods", {})
        for method, words in rows(name).items():
            if method in methods:
                continue
            figures = worker(name, *words, args.quick)
            methods[method] = {
                "settings": {"n_jobs": words[1]},
                "runs": [figures],
                "summary": summary([figures]),
            }
            problems[name] = {
                "description": f"{FOLDS} folds x 12 candidates",
                "methods": methods,
            }
            args.write({"problems": problems, "notes": NOTES})
            progress(name, method, figures)
    return {"problems": problems, "notes": NOTES}


def rows(name):
    """Names of the rows of an estimator: is it the peer, and how many jobs."""
    jobs = dict.fromkeys([1, joblib.cpu_count()])
    return {
        f"{PEERS[name] if peer else name}, n_jobs={n}": (peer, n)
        for n in jobs
        for peer in (False, True)
    }


def worker(name, peer, n_jobs, quick):
    """Figures of one search, from a process of its own."""
    hidden = ("JAX_COMPILATION_CACHE_DIR", "SKLEARN_GN_COMPILATION_CACHE")
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks._searches", name]
        + [str(int(word)) for word in (peer, n_jobs, quick)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={k: v for k, v in os.environ.items() if k not in hidden},
    )
    if process.returncode:
        raise RuntimeError(process.stderr[-2000:])
    return json.loads(process.stdout.splitlines()[-1])


def _known(path):
    """Problems that a file has."""
    if path is None or not path.exists():
        return {}
    return json.loads(path.read_text())["problems"]
