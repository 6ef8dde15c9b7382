"""Penalties of softmax heads: chosen in one fit, and by cross-validation.

FGNSoftmaxHead(), which chooses by rows that are left out, beside LogisticRegressionCV
with ten candidates and five folds, and beside FGNSoftmaxHead(alpha=0.001) and
LogisticRegression with its default penalty: log loss and accuracy on rows that were
held out, and seconds.
"""

import time
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks import _data
from benchmarks._report import progress, settings, summary, target
from sklearn_gn import FGNSoftmaxHead

LANGUAGES = 100
NOTES = (
    "Features are standardised; a fifth of the rows, the same for all methods, is held "
    f"out. languages: the paragraphs of the first {LANGUAGES} versions of the "
    "declaration of human rights.",
    "head_auto is FGNSoftmaxHead by default, head that with alpha=0.001; logistic_cv "
    "and logistic are LogisticRegressionCV (ten penalties, five folds, by log loss) "
    "and LogisticRegression, all else by default. Seconds are those of a fit, "
    "compilation included. over_cv is the quotient with the figure of logistic_cv.",
)


def methods():
    return {
        "head_auto": FGNSoftmaxHead(),
        "head": FGNSoftmaxHead(alpha=0.001),
        "logistic": LogisticRegression(),
        "logistic_cv": LogisticRegressionCV(
            scoring="neg_log_loss", l1_ratios=(0.0,), use_legacy_attributes=False
        ),
    }


def digits(args):
    return load_digits(return_X_y=True)


def letters(args):
    return both_parts(_data.letters(args.data))


def languages(args):
    X, y = both_parts(_data.udhr(args.data))
    kept = np.isin(y, np.unique(y)[:LANGUAGES])
    return X[kept], y[kept]


def both_parts(split):
    X = np.concatenate([split.X_train, split.X_test])
    return X, np.concatenate([split.y_train, split.y_test])


PROBLEMS = {"digits": digits, "letters": letters, "languages": languages}


def held_out(X, y):
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=0.2, stratify=y, random_state=0
    )
    scaler = StandardScaler().fit(X)
    return scaler.transform(X), scaler.transform(X_test), y, y_test


def figures(model, X, X_test, y, y_test):
    start = time.perf_counter()
    with warnings.catch_warnings():  # of peers that run out of iterations
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    seconds = time.perf_counter() - start
    p = model.predict_proba(X_test)
    loss = log_loss(y_test, p, labels=model.classes_)
    accuracy = float(np.mean(model.classes_[np.argmax(p, axis=1)] == y_test))
    return {"log_loss": loss, "accuracy": accuracy, "seconds": seconds}


def row(name, X, y):
    data = held_out(X, y)
    found = {}
    for method, model in methods().items():
        run = figures(model, *data)
        progress({"row": name, "method": method, **run})
        found[method] = {"settings": settings(model), "runs": [run]}
    reference = found["logistic_cv"]["runs"][0]
    for answer in found.values():
        run = answer["runs"][0]
        for figure in ("log_loss", "seconds"):
            run[f"{figure}_over_cv"] = run[figure] / reference[figure]
        answer["summary"] = summary(answer["runs"])
    return {
        "description": f"{len(X)} x {X.shape[1]}, {len(np.unique(y))} classes",
        "methods": found,
        "target_log_loss": target(found, "head_auto", "log_loss_over_cv", "max", 1.01),
        "target_seconds": target(found, "head_auto", "seconds_over_cv", "max", 0.1),
    }


def run(args):
    names = args.only or (["digits"] if args.quick else list(PROBLEMS))
    answers = {}
    for name in names:
        X, y = PROBLEMS[name](args)
        answers[name] = row(name, X, y)
        args.write({"problems": answers, "notes": NOTES})
    return {"problems": answers, "notes": NOTES}
