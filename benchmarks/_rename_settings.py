"""Give the settings in old result files the names that parameters have today.

``python -m benchmarks._rename_settings [FILE ...]``, by default all files in
``benchmarks/results``. Nothing but ``settings`` is changed. A second run changes
nothing, and neither do files of a later date than ``LAST``, which have the new names.
"""

import json
import sys
from pathlib import Path

LAST = "2026-11-22"  # date of the last results with the old names
SOLVER = ("batch_size", "learning_rate", "shuffle")  # now parameters of the solver

RENAMED = {  # by the beginning of the experiment's name
    "sggn": {
        "n_starts": "n_init",
        "ridge": "alpha",
        "damping": "alpha",  # it was in the objective
        "relocations": "solver__relocations",
        "active_tol": "solver__active_tol",
        "rank_tol": "solver__rank_tol",
    },
    "fgn": {},
    "varpro": {
        "curvature_solver": "solver__curvature",
        "iterations_per_batch": "solver__iterations_per_batch",
    },
    "pinn": {
        "geodesic_acceleration": "solver__geodesic_acceleration",
        "momentum": "solver__momentum",
        "jacobi_scaling": "solver__jacobi_scaling",
        "single_precision_iter": "solver__single_precision_iter",
    },
}
PEERS = ("mlp", "linear", "ridge", "gaussian_process", "hist_gradient_boosting")
# Of hidden layers and output, by what is fitted: regressors, and the other problems.
OLD_PENALTIES = (1e-2, 1e-4), (1e-3, 1e-3)
REGRESSION = ("cdr", "dcr", "diabetes", "diamonds")


def renamed(experiment, problem, method, settings):
    """The settings of a method by their new names; those of a peer as they are."""
    family = next((name for name in RENAMED if experiment.startswith(name)), None)
    if family is None or method.startswith(PEERS):
        return settings
    table = {name: f"solver__{name}" for name in SOLVER} | RENAMED[family]
    if family == "pinn" and isinstance(settings.get("damping"), str):
        table["damping"] = "solver__damping_rule"
    new = {table.get(name, name): value for name, value in settings.items()}
    alpha = new.get("alpha")
    if family == "varpro" and ("alpha_output" in new or isinstance(alpha, int | float)):
        hidden, output = OLD_PENALTIES[not problem.startswith(REGRESSION)]
        pair = [new.get("alpha", hidden), new.pop("alpha_output", output)]
        new["alpha"] = pair
    return new


def rename(result):
    """Rename the settings of a result in place."""
    if result["date"] > LAST:
        return
    for problem, answer in result["problems"].items():
        for name, method in answer.get("methods", {}).items():
            if "settings" in method:
                words = result["experiment"], problem, name, method["settings"]
                method["settings"] = renamed(*words)


def main(paths):
    for path in paths or sorted((Path(__file__).parent / "results").glob("*.json")):
        text = Path(path).read_text()
        result = json.loads(text)
        rename(result)
        new = json.dumps(result, indent=1, allow_nan=False) + "\n"
        if new != text:
            Path(path).write_text(new)
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
