"""
A head on frozen features
=========================

An encoder that is no longer trained turns images into features, and a softmax layer on
top learns the classes. Its loss is convex, so there is one optimum to find, and every
step can be checked against scikit-learn.
"""

# %%
# Frozen features
# ---------------
#
# Any fixed map will do as an encoder. Here it is 300 random Fourier features of 1,797
# images of handwritten digits; its weights are drawn once and learn nothing. With a
# large network in its place, the rest of this page stays as it is.

from sklearn.datasets import load_digits
from sklearn.kernel_approximation import RBFSampler
from sklearn.model_selection import train_test_split

images, digit = load_digits(return_X_y=True)
encoder = RBFSampler(gamma=1e-3, n_components=300, random_state=0)
features = encoder.fit_transform(images)
X_train, X_test, y_train, y_test = train_test_split(
    features, digit, test_size=0.4, stratify=digit, random_state=0
)

# %%
# The optimum
# -----------
#
# The default solver minimises the objective of
# :class:`~sklearn.linear_model.LogisticRegression`. The penalties are the same if
# ``C = 1 / (alpha * n_samples)``. The last column tells how far a solver is from the
# optimum: the gradient is zero there.

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import FGNSoftmaxHead

alpha = 0.01
newton = make_pipeline(StandardScaler(), FGNSoftmaxHead(alpha=alpha, random_state=0))
reference = make_pipeline(
    StandardScaler(), LogisticRegression(C=1 / (alpha * len(X_train)), max_iter=1000)
)


def objective(pipeline):
    penalty = alpha / 2 * np.sum(pipeline[-1].coef_ ** 2)
    return log_loss(y_train, pipeline.predict_proba(X_train)) + penalty


def largest_gradient(pipeline):
    scaled = pipeline[:-1].transform(X_train)
    wrong = pipeline.predict_proba(X_train) - (y_train[:, None] == pipeline.classes_)
    by_coef = wrong.T @ scaled / len(scaled) + alpha * pipeline[-1].coef_
    return max(np.abs(by_coef).max(), np.abs(wrong.mean(axis=0)).max())


rows = {}
for pipeline in (newton, reference):
    pipeline.fit(X_train, y_train)
    rows[type(pipeline[-1]).__name__] = {
        "objective": objective(pipeline),
        "accuracy": pipeline.score(X_test, y_test),
        "largest gradient": largest_gradient(pipeline),
    }
pd.DataFrame(rows).T

# %%
# A grid search over damping and rank
# -----------------------------------
#
# The solver "fgn" works on mini-batches; its object holds their size and the learning
# rate, here 1, a full step. ``damping`` bounds the steps. ``rank`` is the number of
# curvature directions that are kept for each image: 1 is FGN, more restore some of what
# it leaves out, and nine for ten classes are the whole curvature.
#
# The damping decides. With too little of it, a step fits the 128 images of its batch
# too closely; with too much, the fit ends early. The rank has an effect only where the
# damping is small: elsewhere the damping bounds the steps, not the curvature left out.

from sklearn.model_selection import GridSearchCV

from sklearn_gn.solvers import FGN

fgn = make_pipeline(
    StandardScaler(),
    FGNSoftmaxHead(
        FGN(learning_rate=1.0, batch_size=128), alpha=alpha, tol=0.02, random_state=0
    ),
)
dampings, ranks = [0.1, 0.3, 1, 3], [1, 2, 9]
search = GridSearchCV(
    fgn,
    {"fgnsoftmaxhead__damping": dampings, "fgnsoftmaxhead__rank": ranks},
    scoring="neg_log_loss",
    cv=3,
).fit(X_train, y_train)

pd.DataFrame(
    -search.cv_results_["mean_test_score"].reshape(len(dampings), len(ranks)),
    index=pd.Index(dampings, name="damping"),
    columns=pd.Index(ranks, name="rank"),
)

# %%
# The table shows the cross-entropy on held-out images; the smallest is best. The
# accuracy on the test images is as high as at the optimum, or nearly so:

float(np.mean(search.predict(X_test) == y_test))

# %%
# Convergence, competitors, spectrum
# ----------------------------------
#
# **Left**: the distance from the optimum. "fgn" and "adam" pass over the data once in
# an iteration, and stop when five of them have gained less than 2 %. They come near,
# and gain little after that. "fgn_newton" takes Newton steps on all images and arrives.
# So would ``LogisticRegression`` with a smaller ``tol``.
#
# **Middle**: the competitor dispersion :math:`\xi`, by digit. It says how the
# probability of an error is spread over the nine wrong digits: 0 means that one of them
# has all of it, 8/9 that they share it evenly, and :math:`1 / (1 - \xi)` is roughly the
# number of competitors that count. FGN treats the wrong digits as one opponent and
# leaves out how they differ among themselves, so it is exact at :math:`\xi = 0`. A
# large :math:`\xi` does not mean that as much is lost: the share of the curvature that
# is left out, at the end of this page, is smaller.
#
# **Right**: the eigenvalues of the FGN matrix at the optimum. Along a direction with an
# eigenvalue far above the damping "fgn" takes Newton steps, far below it gradient steps
# of length 1 / damping. Some eigenvalues exceed 0.1 and none exceeds 1: this is why the
# rank made a difference at the one damping and hardly any at the other.


import matplotlib.pyplot as plt
from sklearn.base import clone

from sklearn_gn.plotting import (
    ConvergenceDisplay,
    DispersionDisplay,
    GramSpectrumDisplay,
)
from sklearn_gn.solvers import Adam

figure, (left, middle, right) = plt.subplots(
    1, 3, figsize=(14, 4.2), layout="constrained"
)
adam = clone(fgn).set_params(
    fgnsoftmaxhead__solver=Adam(learning_rate=0.01, batch_size=128)
)
exact = clone(newton).set_params(fgnsoftmaxhead__tol=1e-10)
for pipeline in (adam, exact):
    pipeline.fit(X_train, y_train)

optimum = objective(exact)
left.axhline(
    objective(reference) - optimum,
    color="black",
    linestyle=":",
    label="LogisticRegression",
)
curves = {"fgn_newton": newton, "fgn": search.best_estimator_, "adam": adam}
for name, pipeline in curves.items():
    head = pipeline[-1]
    log = {**head.convergence_log_, "loss": head.convergence_log_["loss"] - optimum}
    display = ConvergenceDisplay(convergence_log=log, name=f'solver="{name}"')
    display.plot(left, marker=".")
left.set(title="Convergence", ylabel="Objective, distance from the optimum")

head = newton[-1]
DispersionDisplay.from_estimator(newton, X_test, y_test, ax=middle)
middle.axvline(8 / 9, color="black", linestyle=":", linewidth=1, label="All alike")
middle.legend(loc="lower left")
middle.set(title="Competitors of the test images", ylabel="Digit", xlim=(0, 0.95))
GramSpectrumDisplay.from_estimator(head, ax=right)
for damping, style in ((1, "--"), (0.1, ":")):
    right.axhline(
        damping, color="black", linestyle=style, linewidth=1, label=f"Damping {damping}"
    )
right.legend()
right.set(title="Spectrum")
plt.show()

# %%
# On the training images:

log = head.convergence_log_
kept, dropped = log["retained_trace"][-1], log["dropped_trace"][-1]
share = dropped / (kept + dropped)
figures = {
    "mean dispersion": head.competitor_dispersion_,
    "share of the curvature that FGN leaves out": share,
}
pd.DataFrame({"value": figures})
