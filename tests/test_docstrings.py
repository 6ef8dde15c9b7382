"""Docstrings of the public interface say what the code has."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from numpydoc.docscrape import ClassDoc, FunctionDoc
from numpydoc.validate import validate
from sklearn.base import is_classifier

import sklearn_gn.callbacks
from sklearn_gn import plotting
from tests._discovery import all_estimators, public_functions, public_objects

CLASSES = [
    *(estimator for _, estimator in all_estimators()),
    *(getattr(plotting, name) for name in plotting.__all__),
    *(getattr(sklearn_gn.callbacks, name) for name in sklearn_gn.callbacks.__all__),
]


OF_ONE_NETWORK = {"coefs_", "intercepts_"}  # not of a committee
OF_SOME_FITS = {  # not of those with one feature
    "SegmentedRegressor": {"estimators_", "robust_weights_"},
    "ShallowReLURegressor": {
        "alpha_",
        "log_evidence_",
        "n_effective_parameters_",
    },
    "VarProNetClassifier": OF_ONE_NETWORK,
    "VarProNetRegressor": OF_ONE_NETWORK,
}


def documented(entries):
    return [name.strip() for entry in entries for name in entry.name.split(",")]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_constructor_parameters_are_documented_in_order(cls):
    parameters = [p for p in inspect.signature(cls).parameters if p != "self"]
    assert documented(ClassDoc(cls)["Parameters"]) == parameters


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_public_methods_document_their_parameters(cls):
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        module = inspect.getmodule(method).__name__
        if name.startswith("_") or not module.startswith("sklearn_gn"):
            continue
        if name in ("setup", "teardown", "on_fit_task_begin", "on_fit_task_end"):
            continue  # the protocol documents them
        signature = inspect.signature(method).parameters
        parameters = [
            {p.VAR_KEYWORD: "**", p.VAR_POSITIONAL: "*"}.get(p.kind, "") + p.name
            for p in signature.values()
            if p.name not in ("self", "cls")
        ]
        assert documented(FunctionDoc(method)["Parameters"]) == parameters, name


@pytest.mark.parametrize(("name", "cls"), all_estimators())
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fitted_attributes_are_documented_and_exist(name, cls):
    X = np.linspace(0, 1, 20)[:, None]
    y = X[:, 0] ** 2
    settings = {"max_iter": 2} if "max_iter" in cls().get_params() else {}
    model = cls(**settings).fit(X, y > 0.3 if is_classifier(cls()) else y)
    described = set(documented(ClassDoc(cls)["Attributes"]))
    computed = {a for a in described if isinstance(getattr(cls, a, None), property)}
    fitted = {a for a in vars(model) if a.endswith("_") and not a.startswith("_")}
    fitted |= {a for a in computed if hasattr(model, a)}
    assert fitted <= described
    assert described - fitted <= {"feature_names_in_"} | OF_SOME_FITS.get(name, set())


@pytest.mark.parametrize(("name", "cls"), all_estimators())
def test_defaults_are_stated(name, cls):
    described = {e.name: e.type for e in ClassDoc(cls)["Parameters"]}
    for parameter in inspect.signature(cls).parameters.values():
        default = parameter.default
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        assert described[parameter.name].endswith(f"default={shown}"), parameter.name


@pytest.mark.parametrize(("name", "cls"), all_estimators())
def test_estimators_say_when_to_use_them_and_what_to_do_when_the_fit_is_poor(name, cls):
    purpose = " ".join(ClassDoc(cls)["Extended Summary"]).split("  ")[0]
    assert purpose.startswith("Use it ")
    assert "For " in purpose  # what to use something else for
    cure = " ".join(ClassDoc(cls)["Notes"]).split("  ")[-1]
    assert cure.startswith("If the fit is poor, :meth:`diagnose` says what limited it")
    assert re.search(r":doc:`user guide </user_guide/\w+>` has more.$", cure)


@pytest.mark.parametrize(("name", "cls"), all_estimators())
def test_what_is_needed_at_the_keyboard_is_short(name, cls):
    assert len(cls.__doc__.splitlines()) <= 150  # the guide has the rest


def test_no_example_is_skipped():
    for path in Path(sklearn_gn.__file__).parent.rglob("*.py"):
        assert "doctest: +SKIP" not in path.read_text(), path


# Sections that not every object needs, names of returned values, and a rule that takes
# nouns in the plural for verbs.
NOT_ASKED = {"ES01", "EX01", "SA01", "RT02", "SS05"}
IN_WORDS = {"PR01", "RT01"}  # of a method that is described without sections


@pytest.mark.parametrize("name", public_objects())
def test_numpydoc_finds_no_fault(name):
    public = public_objects()[name]
    faults = validate(name)["errors"]
    assert not [fault for fault in faults if fault[0] not in NOT_ASKED]
    if not inspect.isclass(public):
        return
    for method, function in public_functions(public).items():
        if method.startswith("_"):
            continue
        sections = "\n---" in inspect.getdoc(function)
        accepted = NOT_ASKED if sections else NOT_ASKED | IN_WORDS
        faults = validate(f"{name}.{method}")["errors"]
        assert not [f for f in faults if f[0] not in accepted], method
