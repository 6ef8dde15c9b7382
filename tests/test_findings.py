"""What limited a fit: every rule on a log for which the answer is known."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from sklearn_gn import (
    FGNSoftmaxHead,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.callbacks import TimeBudget
from sklearn_gn.findings import diagnose
from tests._discovery import all_estimators


def fitted(stop_reason="tol", loss=(1.0, 0.5, 0.5), **attributes):
    """What the rules read of a fitted estimator."""
    n = len(loss)
    log = {
        "iteration": np.arange(1.0, n + 1),
        "time": np.linspace(0.1, 0.2, n),
        "loss": np.array(loss, float),
        "val_loss": np.full(n, np.nan),
        "gain_ratio": np.ones(n),
    }
    log.update({k: np.array(attributes.pop(k)) for k in [*log] if k in attributes})
    return SimpleNamespace(
        stop_reason_=stop_reason,
        converged_=stop_reason == "tol",
        n_iter_=n,
        loss_=loss[-1],
        convergence_log_=log,
        _cure_of_overfitting=("overfitting", "alpha", "Raise alpha."),
        _limits=lambda: None,
        _limits_of_steps=lambda: ("rank", "damping"),
        _naming_its_budget=lambda text: text,
        **{"_share_of_linear": lambda: 0.0, **attributes},
    )


def causes(model):
    return [(f.cause, f.parameter) for f in diagnose(model).findings]


def text_of(model):
    return str(diagnose(model))


def test_a_fit_without_limits_is_said_to_have_converged():
    assert causes(fitted()) == [("none", None)]


def test_budgets_tell_a_falling_loss_from_one_that_has_settled():
    falling = np.geomspace(1, 1e-6, 20)
    assert causes(fitted("max_iter", falling)) == [("iterations", "max_iter")]
    assert causes(fitted("max_time", falling)) == [("time", "max_time")]
    assert causes(fitted("max_iter", np.ones(20))) == [("iterations", "tol")]
    fall = 1 - falling[-1] / falling[-3]
    assert f"fell by {fall:.1%}" in text_of(fitted("max_iter", falling))


def test_a_fit_by_the_evidence_is_not_judged_by_its_loss():
    by_evidence = {"n_effective_parameters_": 2.0, "_n_rows": 20}
    rising = fitted("max_iter", np.ones(20), **by_evidence)
    assert causes(rising) == [("iterations", "max_iter")]
    assert "log evidence" in text_of(rising)


@pytest.mark.parametrize(
    ("reason", "parameter"),
    [("singular", "damping"), ("separable", "alpha"), ("non_finite", "damping")],
)
def test_failures_name_the_parameter(reason, parameter):
    assert causes(fitted(reason)) == [("stopped", parameter)]


def test_overfitting_is_seen_in_the_validation_loss():
    rising = fitted(loss=(1.0, 0.5, 0.4), val_loss=(1.0, 0.6, 0.9))
    assert causes(rising) == [("overfitting", "alpha")]
    assert "lowest in iteration 2 and rose by 50.0%" in text_of(rising)
    far = fitted(loss=(1.0, 0.01), val_loss=(1.0, 0.5))
    assert causes(far) == [("overfitting", "alpha")]
    assert "50 times" in text_of(far)
    assert causes(fitted(val_loss=(1.0, 0.6, 0.6))) == [("none", None)]


def test_advice_on_overfitting_fits_the_parameters():
    log = {"loss": (1.0, 0.5, 0.4), "val_loss": (1.0, 0.6, 0.9)}
    assert causes(fitted(early_stopping=True, **log)) == [("none", None)]
    by_evidence = fitted(n_effective_parameters_=3.0, **log)
    assert causes(by_evidence) == [("overfitting", "early_stopping")]
    assert "alpha" not in text_of(by_evidence)


def test_small_gain_ratios_count_unless_the_fit_converged():
    assert causes(fitted("line_search", gain_ratio=(1.0, 0.02, 0.01)))[1] == (
        "steps",
        "random_state",
    )
    assert causes(fitted("tol", gain_ratio=(1.0, 0.02, 0.01))) == [("none", None)]


def test_directions_without_influence_are_counted():
    spectrum = np.array([1.0, 0.1, 1e-14, 0.0])
    assert "2 of 4 directions" in text_of(fitted(gram_spectrum_=spectrum))
    penalised = fitted(gram_spectrum_=spectrum, n_effective_parameters_=2.0)
    assert causes(penalised) == [("none", None)]
    of_an_equation = fitted(n_effective_parameters_=np.nan, noise_std_=np.nan)
    assert causes(of_an_equation) == [("none", None)]
    head = FGNSoftmaxHead(max_iter=3, solver="adam")
    with pytest.warns(ConvergenceWarning):
        head.fit(np.arange(40.0)[:, None], np.arange(40) % 2)
    assert "rank" not in [cause for cause, _ in causes(head)]


def test_a_long_first_iteration_is_compilation():
    assert causes(fitted(time=(5.0, 5.1, 5.2))) == [("compilation", None)]
    assert causes(fitted(time=(0.5, 0.6, 0.7))) == [("none", None)]
    by_numpy = fitted(time=(5.0, 5.1, 5.2), _is_compiled=False)
    assert causes(by_numpy) == [("none", None)]


def test_an_estimator_says_what_is_noise():
    rng = np.random.RandomState(0)
    X = rng.randn(100, 2)
    y = X[:, 0] + rng.randn(100)
    model = ShallowReLURegressor(random_state=0)
    with pytest.raises(NotFittedError):
        model.diagnose()
    diagnosis = model.fit(X, y).diagnose()
    noise = next(f for f in diagnosis.findings if f.cause == "noise")
    assert f"deviation of {model.noise_std_:.3g}" in noise.text
    assert str(diagnosis).startswith("ShallowReLURegressor stopped (tol) after")
    assert "<li><b>noise</b>" in diagnosis._repr_html_()


@pytest.mark.parametrize(("name", "cls"), all_estimators())
def test_every_estimator_says_what_limited_its_fit(name, cls):
    assert callable(cls.diagnose)
    with pytest.raises(NotFittedError):
        cls().diagnose()


def test_crowded_models_ask_for_rows():
    crowded = {"n_effective_parameters_": 60.0, "noise_std_": 0.1, "_n_rows": 100}
    assert ("points", None) in causes(fitted(**crowded))
    assert "60 parameters for 100 rows" in text_of(fitted(**crowded))
    crowded["n_effective_parameters_"] = 40.0
    assert causes(fitted(**crowded)) == [("noise", None)]


def test_features_of_different_size_are_named():
    rng = np.random.RandomState(0)
    X = np.tile([-1.0, 1.0], 1500)[:, None] * [1e-3, 10.0, 0.0]
    head = FGNSoftmaxHead(alpha=0.1).fit(X, rng.permutation(3000) % 2)
    assert "scale" in [cause for cause, _ in causes(head)]
    assert "1e+04 times" in str(head.diagnose())
    words = FGNSoftmaxHead(alpha=0.1).fit(
        sparse.csr_array(X), rng.permutation(3000) % 2
    )
    assert "scale" not in [cause for cause, _ in causes(words)]


def test_the_warning_names_the_diagnosis():
    with pytest.warns(ConvergenceWarning, match=r"Raise max_iter.*diagnose\(\) says"):
        FGNSoftmaxHead(max_iter=1, alpha=1e-6).fit(np.eye(6), np.arange(6) % 3)
    head = FGNSoftmaxHead(max_iter=1, alpha=1e-6, damping=1.0)
    with pytest.warns(ConvergenceWarning, match=r"damping=1\.0 keeps the steps small"):
        head.fit(np.eye(6), np.arange(6) % 3)


def test_only_what_makes_steps_smaller_than_its_default_is_named():
    """damping and rank of mini-batch solvers have defaults of their own."""
    for solver in ("fgn", "sgn"):
        head = FGNSoftmaxHead(solver, max_iter=1, damping=0.3, rank=1)
        with pytest.warns(ConvergenceWarning, match=r"Raise max_iter.*enough\. diag"):
            head.fit(np.eye(6), np.arange(6) % 3)


def line_causes(model):
    return [(f.cause, f.parameter) for f in model.diagnose().findings]


@pytest.mark.filterwarnings("ignore:The criterion falls", "ignore:Neighbouring")
def test_broken_lines_say_what_limits_them():
    x = np.linspace(0, 10, 101)
    X, convex = x[:, None], np.maximum(x[:, None] - np.arange(1, 10), 0).sum(axis=1)
    short = SegmentedRegressor(max_breakpoints=4).fit(X, convex)
    assert ("breakpoints", "max_breakpoints") in line_causes(short)
    assert "not worth" not in str(short.diagnose())
    assert f"{len(short.breakpoints_)} breakpoints, R2 0.9" in str(short.diagnose())
    enough = SegmentedRegressor(max_breakpoints=10).fit(X, convex)
    assert line_causes(enough) == [("none", None)]
    noise = np.random.RandomState(0).randn(101)
    noisy = SegmentedRegressor().fit(X, np.maximum(x - 5, 0) + 0.1 * noise)
    assert line_causes(noisy) == [("noise", None)]
    assert f"{noisy.noise_std_:.3g}" in str(noisy.diagnose())
    assert "not worth" in str(noisy.diagnose())
    vague = SegmentedRegressor(3).fit(X, noise)
    assert ("breakpoints", "n_breakpoints") in line_causes(vague)
    few = SegmentedRegressor(2, min_rows=2).fit(X[::15], noise[::15])
    assert ("points", "n_breakpoints") in line_causes(few)
    assert "<li><b>points</b>" in few.diagnose()._repr_html_()


def test_steps_that_are_kept_small_are_named():
    by_evidence = {"n_effective_parameters_": 4.0, "_n_rows": 100}
    assert causes(fitted(damping=0.1)) == [("none", None)]  # it converged
    assert causes(fitted(damping=0.1, **by_evidence)) == [("steps", "damping")]
    few = {"rank": 3, "gram_spectrum_": np.ones(8), **by_evidence}
    assert causes(fitted(**few)) == [("steps", "rank")]
    assert causes(fitted(**{**few, "rank": 8})) == [("none", None)]
    slow = causes(fitted("max_iter", np.ones(20), damping=0.1))
    assert slow == [("steps", "damping"), ("iterations", "tol")]


def test_exact_data_have_no_noise_to_speak_of():
    X = np.linspace(0, 1, 60).reshape(30, 2)
    model = ShallowReLURegressor(random_state=0).fit(X, X @ [1.0, 2.0])
    (finding,) = [f for f in model.diagnose().findings if f.cause == "none"]
    assert "leave no noise" in finding.text


@pytest.mark.parametrize("d", [1, 2])
def test_a_constant_target_is_named(d):
    X = np.linspace(0, 1, 60).reshape(-1, d)
    model = ShallowReLURegressor(random_state=0).fit(X, np.full(len(X), 3.0))
    (finding,) = model.diagnose().findings
    assert finding.text.startswith("The target is constant")
    weight = np.r_[0.0, np.ones(len(X) - 1)]
    y = np.r_[4.0, np.full(len(X) - 1, 3.0)]
    assert causes(model.fit(X, y, weight)) == [("none", None)]
    assert "target is constant" in str(model.diagnose())


@pytest.mark.parametrize(
    "y", [1.7e9 + 1e-3 * np.arange(9.0), np.linspace(-1e300, 1e300, 9)]
)
def test_targets_that_differ_are_not_constant(y):
    model = VarProNetRegressor(hidden_layer_sizes=(), random_state=0)
    assert "constant" not in str(model.fit(np.arange(9.0)[:, None], y).diagnose())


@pytest.mark.parametrize("estimator", [ShallowReLURegressor, VarProNetRegressor])
def test_a_linear_model_in_place_of_networks_is_named(estimator):
    X, y = load_diabetes(return_X_y=True)
    model = estimator(random_state=0).fit(X[:6], y[:6])
    assert [cause for cause, _ in causes(model)] == ["points", "linear", "noise"]
    _, linear, noise = model.diagnose().findings
    assert linear.text.startswith(("The returned model is linear", "The linear model"))
    assert f"ends at a loss of {model.convergence_log_['loss'][-1]:.4g}" in linear.text
    assert f"model has a loss_ of {model.loss_:.4g}" in linear.text
    assert f"a standard deviation of {model.noise_std_:.3g}." in noise.text


def test_a_part_of_a_committee_may_be_linear():
    some = fitted(_share_of_linear=lambda: 0.4)
    assert causes(some) == [("linear", None)]
    assert "has a share of 40%" in text_of(some)
    assert "ends at" not in text_of(some)  # at the loss of the model


def test_shares_of_a_committee_are_told():
    X = np.random.default_rng(0).normal(size=(150, 3))
    model = VarProNetRegressor(random_state=0).fit(X, X[:, 0] + np.sin(2 * X[:, 1]))
    names = [repr(member) for member in model.estimators_]
    assert names[0].startswith("<relu (10,), share ")
    assert names[-1] == f"<Gaussian process, share {model.estimators_[-1].share_:.2g}>"


def test_one_network_in_place_of_a_committee_is_named():
    X = np.random.default_rng(0).uniform(size=(30, 5))
    Y = np.sin(X @ np.ones((5, 200)) + np.arange(200))
    large = VarProNetRegressor(max_iter=3, tol=1.0, random_state=0).fit(X, Y)
    finding = large.diagnose().findings[0]
    assert (finding.cause, finding.parameter) == ("single network", "alpha")
    assert f"alpha={large.alpha_}" in finding.text
    asked = large.set_params(alpha=(0.01, 0.0001)).fit(X, Y)
    assert "single network" not in [f.cause for f in asked.diagnose().findings]


def test_frequencies_of_classes_in_place_of_networks_are_named():
    rng = np.random.RandomState(0)
    X, y = rng.normal(size=(200, 5)), rng.randint(3, size=200)
    diagnosis = VarProNetClassifier(random_state=0).fit(X, y).diagnose()
    (text,) = [f.text for f in diagnosis.findings if f.cause == "linear"]
    assert text.startswith("The frequencies of the classes have a share of ")
    assert "linear model" not in str(diagnosis)


@pytest.mark.parametrize("n_rows", [11, 30])
def test_few_residuals_have_no_outliers(n_rows):
    X = np.linspace(-1, 1, n_rows)[:, None]
    y = X[:, 0] + 0.01 * np.random.RandomState(0).randn(n_rows)
    y[n_rows // 2] += 3
    line = VarProNetRegressor(hidden_layer_sizes=(), random_state=0).fit(X, y)
    found = [f.cause for f in line.diagnose().findings]
    assert ("outliers" in found) == (n_rows == 30)


@pytest.mark.parametrize(
    ("n_neurons", "said"), [("auto", "By the criterion"), (3, "Where the")]
)
def test_one_feature_has_noise_too(n_neurons, said):
    rng = np.random.RandomState(0)
    X = np.linspace(0, 1, 60)[:, None]
    model = ShallowReLURegressor(n_neurons, random_state=0)
    model.fit(X, abs(X[:, 0] - 0.4) + 0.1 * rng.randn(60))
    (noise,) = [f for f in model.diagnose().findings if f.cause == "noise"]
    assert f"deviation of {model.noise_std_:.3g}. {said}" in noise.text
    exact = model.fit(X, abs(X[:, 0] - 0.4))
    assert "noise" not in [cause for cause, _ in causes(exact)]


def test_numbers_agree_with_their_nouns():
    one = fitted(n_effective_parameters_=1.0, noise_std_=np.array([0.222, 104.0]))
    text = text_of(one)
    assert "The data determine 1 parameter." in text
    assert "standard deviations of 0.222 and 104." in text
    one.noise_std_ = np.arange(1.0, 8.0)
    assert "standard deviations from 1 to 7." in text_of(one)


def test_the_one_who_ends_a_fit_is_named():
    falling = np.geomspace(1, 1e-6, 20)
    interrupted = fitted("interrupted", falling)
    assert causes(interrupted) == [("stopped", "warm_start")]
    assert "max_iter" not in text_of(interrupted)
    assert causes(fitted("callback", falling)) == [("stopped", None)]
    X = np.random.RandomState(0).randn(30, 2)
    head = FGNSoftmaxHead().set_callbacks(TimeBudget(1e-9))
    name = r"TimeBudget\(seconds=1e-09\)"
    with pytest.warns(ConvergenceWarning, match=rf"step\. Raise {name}\. diagnose"):
        head.fit(X, np.arange(30) % 3)
    time = head.diagnose().findings[0]
    assert (time.cause, time.parameter) == ("time", None)
    assert "TimeBudget(seconds=1e-09)" in time.text
    assert "max_time" not in time.text
    with pytest.warns(ConvergenceWarning, match="Raise max_time"):
        head.set_params(max_time=1e-10).fit(X, np.arange(30) % 3)
    assert head.diagnose().findings[0].parameter == "max_time"


def test_partial_fit_keeps_no_log():
    X, y = np.eye(6), np.arange(6) % 3
    head = FGNSoftmaxHead("fgn", rank=1).partial_fit(X, y, classes=range(3))
    assert [f.cause for f in head.diagnose().findings] == ["none"]
    with pytest.raises(NotFittedError):
        FGNSoftmaxHead("fgn").diagnose()


def test_what_a_model_cannot_fit_is_told_from_noise():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (200, 1))
    noise = 0.3 * rng.normal(size=200)
    line = VarProNetRegressor(hidden_layer_sizes=(), random_state=0)

    def causes(X, y):
        return [f.cause for f in line.fit(X, y).diagnose().findings]

    assert "noise" in causes(X, X[:, 0] + noise)
    assert "lack of fit" not in causes(X, X[:, 0] + noise)
    found = line.fit(X, np.sin(2 * X[:, 0]) + noise).diagnose().findings
    assert "noise" not in [f.cause for f in found]
    (lack,) = [f for f in found if f.cause == "lack of fit"]
    assert lack.parameter == "hidden_layer_sizes"
    # Repeated rows, whose means are off the line or on it.
    Z = np.repeat(np.arange(40.0), 5)[:, None]
    assert "lack of fit" in causes(Z, np.repeat(rng.normal(size=40), 5) + noise)
    assert "lack of fit" not in causes(Z, Z[:, 0] + noise)


@pytest.mark.parametrize("estimator", [ShallowReLURegressor, VarProNetRegressor])
def test_penalties_that_are_in_the_way_are_named(estimator):
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(120, 2)), rng.normal(size=(1000, 2))

    def law(X):
        return np.sin(2 * X[:, 0]) + np.abs(X[:, 1])

    y = law(X) + 0.5 * rng.normal(size=120)
    error, named = {}, {}
    for alpha in (1e-6, 0.1, "auto"):
        model = estimator(alpha=alpha, random_state=0).fit(X, y)
        error[alpha] = np.mean((model.predict(Z) - law(Z)) ** 2)
        findings = model.diagnose().findings
        named[alpha] = [f.cause for f in findings if f.parameter == "alpha"]
    assert named == {1e-6: ["overfitting"], 0.1: ["lack of fit"], "auto": []}
    assert error["auto"] < 0.5 * min(error[1e-6], error[0.1])
    for n_rows in (20, 40):  # and large ones are never called small
        for alpha in (0.1, 0.3, 1.0, 10.0, 1e6):
            model = estimator(alpha=alpha, random_state=0).fit(X[:n_rows], y[:n_rows])
            found = {f.cause for f in model.diagnose().findings}
            assert "overfitting" not in found, (n_rows, alpha)


def test_small_penalties_cost_exact_data_nothing():
    x = np.linspace(-1, 1, 80)[:, None]
    model = VarProNetRegressor(alpha=1e-8, random_state=0).fit(x, np.sin(3 * x[:, 0]))
    assert "overfitting" not in {f.cause for f in model.diagnose().findings}
