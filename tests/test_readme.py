"""README and first steps: their snippets run, the figures are those of the results."""

import json
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""
pytestmark = pytest.mark.skipif(not README, reason="needs the source tree")


def problem(experiment, name):
    path = ROOT / "benchmarks" / "results" / f"{experiment}.json"
    return json.loads(path.read_text())["problems"][name]


def median(experiment, name, method, figure):
    methods = problem(experiment, name)["methods"]
    return methods[method]["summary"][figure]["median"]


def rows_of_figures():
    defaults = json.loads((ROOT / "benchmarks/results/defaults.json").read_text())
    standing = defaults["standing"]
    shallow, committee = (
        len(standing[name]["level_or_ahead"]) for name in ("shallow_relu", "varpro_net")
    )
    yield (
        f"{standing['shallow_relu']['tables']} tables",
        f"on {shallow} of 20 (`ShallowReLURegressor`) "
        f"and {committee} of 20 (`VarProNetRegressor`) |",
    )
    lower = defaults["standing_of_classifiers"]["varpro_net"]
    peers = "logistic_regression", "hist_gradient_boosting", "mlp", "catboost"
    yield (
        "8 tables with classes",
        "| higher with `LogisticRegression` on {}, `HistGradientBoostingClassifier` on "
        "{}, `MLPClassifier` on {} of 8, CatBoost on {} of the 7 that it ends within "
        "20 minutes |".format(*(len(lower[peer]) for peer in peers)),
    )
    ours, pwlf = (
        [
            median("sggn_1d", "three_thousand", m, f)
            for f in ("seconds", "mse_over_noise")
        ]
        for m in ("sggn", "pwlf_fitfast")
    )
    yield (
        "broken line",
        f"| {ours[0]:.2g} s, error {ours[1]:.2f} "
        f"| pwlf {pwlf[0]:.2g} s, error {pwlf[1]:.2f} |",
    )
    seconds = {
        m: median("segmented", "series", m, "seconds")
        for m in ("segmented", "r_segmented", "pwlf")
    }
    exact = median("segmented", "series", "segmented", "exact")
    yield (
        "10,000 series",
        f"| {seconds['segmented']:.0f} s, {100 * exact:.0f} % with the right number "
        "| told the number, from 50 series: R's segmented "
        f"{seconds['r_segmented']:.0f} s, pwlf {seconds['pwlf']:.0f} s |",
    )
    head = median("fgn_heads", "udhr", "fgn_newton", "seconds_1e-4")
    for solver in ("lbfgs", "newton-cg", "saga"):
        assert median("fgn_heads", "udhr", solver, "seconds_1e-4") is None
    yield "528 languages", f"| {head:.3g} s |"
    path = {
        method: ", ".join(
            [
                f"{median('head_path', 'path_digits', method, 'seconds'):.2f} s",
                f"{median('head_path', 'path_digits', method, 'log_loss'):.3f}",
            ]
        )
        for method in ("head_cv", "logistic_cv_newton-cg", "logistic_cv_lbfgs")
    }
    yield (
        "45 penalties",
        f"| {path['head_cv']} | `LogisticRegressionCV` by newton-cg "
        f"{path['logistic_cv_newton-cg']}, by lbfgs {path['logistic_cv_lbfgs']} |",
    )
    error = {
        m: median("varpro_cdr", "cdr_time", m, "test")
        for m in ("gnvpro_dense", "mlp_lbfgs", "hist_gradient_boosting")
    }
    yield (
        "surrogate",
        f"| {error['gnvpro_dense']:.4f} | `MLPRegressor` {error['mlp_lbfgs']:.4f}, "
        f"boosting {error['hist_gradient_boosting']:.4f} |",
    )
    error = {
        m: f"{median('smooth', 'friedman1', m, 'error'):.1e}"
        for m in ("default", "gaussian_process", "mlp")
    }
    yield (
        "Friedman's function",
        f"| {error['default']} | Gaussian process {error['gaussian_process']}, "
        f"`MLPRegressor` {error['mlp']} |",
    )
    error = {
        m: f"{median('pinn_peers', 'kovasznay', m, 'error'):.1e}"
        for m in ("dngd", "scimba", "jinns", "deepxde")
    }
    yield (
        "Kovasznay",
        f"| {error['dngd']} | scimba {error['scimba']}, jinns {error['jinns']}, "
        f"DeepXDE {error['deepxde']} |",
    )
    known = problem("ablation", "pinn.corners")["methods"]["equations/l_shape"]
    error = [known["summary"][f"error_{case}"]["median"] for case in ("on", "off")]
    deepxde = median("pinn_demos", "l_shape", "deepxde", "error")
    yield (
        "L-shaped domain",
        f"| {error[0]:.1e} with known functions of the corner, {error[1]:.1e} without "
        f"| DeepXDE {deepxde:.1e} in 60 s",
    )
    smooth = json.loads((ROOT / "benchmarks/results/smooth.json").read_text())
    ahead = [
        median("smooth", name, "default", "error")
        < median("smooth", name, "gaussian_process", "error")
        for name in smooth["problems"]
    ]
    yield (
        f"{len(ahead)} smooth functions",
        f"| lower on {sum(ahead)} of {len(ahead)} "
        f"| Gaussian process lower on {len(ahead) - sum(ahead)},",
    )
    ours = max(
        median("defaults", "computers", m, "r2") for m in ("shallow_relu", "varpro_net")
    )
    peer = median("defaults", "computers", "catboost", "r2")
    yield (
        "price of computers",
        f"| {ours:.3f} | CatBoost {peer:.3f}:",
    )


def test_figures_are_those_of_the_result_files():
    table = README.partition("## Figures")[2].partition("## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    expected = list(rows_of_figures())
    assert len(rows) == len(expected) == 12
    for row, (words, figures) in zip(rows, expected, strict=True):
        assert row.startswith(f"| {words}")
        assert figures in row


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_it_is_short():
    assert len(README.splitlines()) <= 150


def shorter(code, *changes):
    """The code of a snippet with fewer rows and iterations: tests are not patient."""
    for long, short in changes:
        assert long in code, long
        code = code.replace(long, short)
    return code


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_snippets_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert max(len(block.splitlines()) for block in blocks) <= 8
    code = shorter(
        "\n".join(blocks),
        ("VarProNetRegressor(", "VarProNetRegressor(max_iter=2, "),
        ("make_cdr(300, n_nodes=11)", "make_cdr(30, n_nodes=5)"),
        ("[:200]", "[:20]"),
        ("[200:]", "[20:]"),
        ("[:1000]", "[:150]"),
        ("tol=1e-4", "max_iter=1"),
    )
    namespace = {}
    exec(compile(code, "README.md", "exec"), namespace)
    assert namespace["mean"].shape == namespace["std"].shape == (10, 72)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_first_steps_run(capsys):
    text = (ROOT / "doc" / "getting_started.rst").read_text()
    namespace = {}
    blocks = re.findall(r"code-block:: python\n\n((?:   .*\n|\n)+)", text)
    assert len(blocks) == 6
    code = shorter(
        "".join(map(textwrap.dedent, blocks)),
        ("(random_state=0).fit(X_train", "(max_iter=2, random_state=0).fit(X_train"),
        ("X[:1000], y[:1000]", "X[:300], y[:300]"),
        ("(random_state=0).fit(X[:120]", "(tol=0.01, random_state=0).fit(X[:120]"),
        ("PINNSolver(problem,", "PINNSolver(problem, hidden_layer_sizes=(6,),"),
    )
    exec(compile(code, "getting_started", "exec"), namespace)
    np.testing.assert_allclose(namespace["line"].breakpoints_, [0.3], atol=0.01)
    assert namespace["model"].score(namespace["X"][120:], namespace["Y"][120:]) > 0.99
    np.testing.assert_allclose(namespace["solver"].predict([[0.5]]), 0.125, atol=1e-6)
