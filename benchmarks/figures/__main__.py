"""``python -m benchmarks.figures DIR`` draws all figures into a folder."""

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parents[1] / "results"
ERRORS = ("cdr_work", "cdr_time", "dcr_work", "dcr_time")  # the others have accuracies


def read(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def figures():
    """Functions that draw a figure on the axes they are given, by name of its file."""
    from benchmarks.figures import fgn, varpro

    mechanism = read("fgn_mechanism")
    table = {
        "fgn_step_times": partial(fgn.step_times, mechanism=mechanism),
        "fgn_curvature_traces": partial(fgn.curvature_traces, mechanism=mechanism),
        "fgn_retained_decrease": partial(fgn.retained_decrease, mechanism=mechanism),
        "fgn_accuracy": partial(fgn.accuracy_over_time, heads=read("fgn_heads")),
        "varpro_expansions": expansions,
    }
    for name in ("varpro_cdr", "varpro_dcr", "varpro_images", "varpro_tabular"):
        result = read(name)
        for problem, answer in result["problems"].items():
            words = {"quantity": "Accuracy", "yscale": "linear"}
            if problem in ERRORS:
                words = {"quantity": "Relative error", "yscale": "log"}
            for x in varpro.X_LABELS if "curves" in answer else ():
                draw = partial(varpro.work_curves, result=result, problem=problem, x=x)
                table[f"varpro_{problem}_{x}"] = partial(draw, **words)
    return table


def expansions(ax):
    from benchmarks.figures import taylor
    from sklearn_gn.datasets import make_peaks_classification

    rng = np.random.RandomState(0)
    X, y = make_peaks_classification(500, random_state=0)
    theta = taylor.residual_parameters(rng, X.shape[1])
    errors = taylor.taylor_errors(X, y, taylor.residual_network, theta, rng)
    taylor.expansions(ax, errors)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures", description=__doc__
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder = parser.parse_args(argv).folder
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in figures().items():
        figure, ax = plt.subplots(layout="constrained")
        draw(ax)
        figure.savefig(folder / f"{name}.png", dpi=150)
        plt.close(figure)


if __name__ == "__main__":
    main()
