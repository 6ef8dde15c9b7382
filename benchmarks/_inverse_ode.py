"""Coverage of the error bars of coefficients: logistic growth from noisy observations.

A population grows as ``u' = r u (1 - u / K)``; r and K are found from 30 observations
with noise of 1, 5 or 20 % of the standard deviation of the solution. A run is a
simulation; its ``coverage`` is the share of the two coefficients inside their 95 %
intervals. One small network and few points for all: they share what is compiled.
"""

import time
import warnings

import numpy as np
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

from benchmarks._report import progress, summary
from sklearn_gn import PINNSolver
from sklearn_gn.pde import Initial, Interval, Problem, Unknown, d

NOISES = {5: 0.05, 1: 0.01, 20: 0.2}  # by percent; first that of the target
N_SIMULATIONS = 400
TARGET = 5, 0.92, 0.98  # percent of noise, lowest and highest mean coverage
_RATE, _CAPACITY, _START, _END, _N = 1.0, 2.0, 0.2, 6.0, 30
_LEVEL = 0.95
_WRITTEN = 25  # simulations after which the file is written


def growth(u, t, r, K):
    return d(u, "t")(t) - r * u(t) * (1 - u(t) / K)


PROBLEM = Problem(
    growth,
    Interval(0, _END),
    [Initial(_START)],
    coefficients={
        "r": Unknown(0.5, positive=True),
        "K": Unknown(1.0, positive=True),
    },
)
SETTINGS = {
    "hidden_layer_sizes": (10,),
    "n_interior": 50,
    "n_boundary": 1,
    "resample": None,
    "max_iter": 200,
}


def add_rows(problems, n_simulations, write):
    """Add the simulations that are missing, and write after every 25 of them."""
    for percent, noise in NOISES.items():
        problem = problems.setdefault(
            f"inverse_ode_{percent}",
            {
                "description": f"coefficients of an inverse ODE, {percent} % noise",
                "methods": {},
            },
        )
        answer = problem["methods"].setdefault("pinn", {"settings": {}, "runs": []})
        runs = answer["runs"]
        for seed in range(len(runs), n_simulations):
            runs.append({"seed": seed, **figures(noise, seed)})
            if len(runs) % _WRITTEN == 0 or len(runs) == n_simulations:
                answer["summary"] = summary(runs)
                if percent == TARGET[0]:
                    problem |= targets(runs)
                write()
        mean = float(np.mean([run["coverage"] for run in runs]))
        progress(f"inverse_ode_{percent}: {mean:.4f} of {len(runs)} simulations")


def targets(runs):
    """Bounds of the mean coverage."""
    mean = float(np.mean([run["coverage"] for run in runs]))
    _, lowest, highest = TARGET
    aim = {"method": "pinn", "figure": "coverage", "statistic": "mean", "value": mean}
    return {
        "target_at_least_pinn": {
            **aim,
            "at_least": lowest,
            "passed": bool(mean >= lowest),
        },
        "target_at_most_pinn": {
            **aim,
            "at_most": highest,
            "passed": bool(mean <= highest),
        },
    }


def simulation(noise, seed):
    """Points and noisy observations."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, _END, _N + 1)[1:]
    u = _CAPACITY / (1 + (_CAPACITY / _START - 1) * np.exp(-_RATE * t))
    return t[:, None], u + noise * u.std() * rng.standard_normal(_N)


def figures(noise, seed):
    """Figures of one simulation."""
    model = PINNSolver(PROBLEM, **SETTINGS, random_state=seed)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(*simulation(noise, seed))
    seconds = time.perf_counter() - start
    found = np.array([model.coefficients_[name] for name in ("r", "K")])
    bars = np.array([model.coefficients_std_[name] for name in ("r", "K")])
    error = np.abs(found - [_RATE, _CAPACITY])
    inside = error <= norm.ppf((1 + _LEVEL) / 2) * bars
    return {
        "coverage": float(np.mean(inside)),
        "largest_error": float(np.max(error / [_RATE, _CAPACITY])),
        "noise_std": float(model.noise_std_),
        "iterations": model.n_iter_,
        "converged": bool(model.converged_),
        "seconds": seconds,
    }
