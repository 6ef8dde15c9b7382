"""
A simulator replaced by a surrogate with error bars
===================================================

How high does an epidemic rise, and when? A simulator answers for given rates, but a
question such as "what if none of the rates is known exactly" takes many thousands of
runs. A surrogate learned from a few hundred answers at once, and says how far it may be
trusted.
"""

# %%
# The simulator
# -------------
# There are two groups, young and old, and in each people are susceptible, exposed,
# infectious or recovered. Eight parameters: four contact rates, the rates at which
# exposed people become infectious and infectious ones recover, the share of the young,
# and how many of the old are immune at the start. What is wanted is the largest share
# of people who are infectious at one time, on a logarithmic scale.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.integrate import solve_ivp
from scipy.stats import qmc

ranges = pd.DataFrame(
    {
        "contacts young-young": (0.2, 0.8),
        "contacts young-old": (0.02, 0.2),
        "contacts old-young": (0.02, 0.2),
        "contacts old-old": (0.1, 0.5),
        "onset rate": (0.1, 0.5),
        "recovery rate": (0.1, 0.25),
        "share of the young": (0.2, 0.6),
        "immune old": (0.0, 0.5),
    },
    index=["from", "to"],
)


def peak(yy, yo, oy, oo, onset, recovery, young, immune):
    """Largest share of infectious people."""
    size = np.array([young, 1 - young])
    contacts = np.array([[yy, yo], [oy, oo]])
    start = np.array([[1, 1 - immune], [0, 0], [0.001, 0.001]])

    def rates(t, state):
        s, e, i = state.reshape(3, 2)
        new = s * (contacts @ i)
        return np.concatenate([-new, new - onset * e, onset * e - recovery * i])

    path = solve_ivp(
        rates,
        (0, 365),
        start.ravel(),
        t_eval=np.arange(366.0),
        rtol=1e-6,
        method="LSODA",
    )
    return (size @ path.y[4:]).max()


n_train, n_test = 400, 200
unit = qmc.Sobol(8, seed=0).random(1024)[: n_train + n_test]
X = pd.DataFrame(qmc.scale(unit, *ranges.to_numpy()), columns=ranges.columns)
y = np.log([peak(*row) for row in X.to_numpy()])
X_train, y_train = X[:n_train], y[:n_train]
X_test, y_test = X[n_train:], y[n_train:]
X.assign(peak=np.exp(y)).head().round(3)

# %%
# Error by number of runs
# -----------------------
# Default settings, with two exceptions. The Gaussian process gets a kernel with a
# length scale for every parameter; its default kernel has none that are fitted. And
# inputs and targets are standardised for the regressors that do not do so themselves.
# Without noise a fit of the committee may stop at ``max_iter``, with a warning.

from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_gn import VarProNetRegressor

kernel = ConstantKernel(10.0) * RBF(np.full(8, 3.0)) + WhiteKernel(1e-4, (1e-10, 1.0))
candidates = {
    "VarProNetRegressor": VarProNetRegressor(random_state=0),
    "GaussianProcessRegressor": make_pipeline(
        StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True)
    ),
    "MLPRegressor": TransformedTargetRegressor(
        make_pipeline(StandardScaler(), MLPRegressor(max_iter=2000, random_state=0)),
        transformer=StandardScaler(),
    ),
    "HistGradientBoostingRegressor": HistGradientBoostingRegressor(random_state=0),
}
numbers = [50, 100, 200, 400]
error = pd.DataFrame(index=pd.Index(numbers, name="runs"), columns=list(candidates))
for n in numbers:
    for name, model in candidates.items():
        model.fit(X_train[:n], y_train[:n])
        misfit = model.predict(X_test) - y_test
        error.loc[n, name] = np.sqrt(np.mean(misfit**2)) / y_test.std()
error = error.astype(float)
error.round(4)

# %%
# Error bars
# ----------
# Two of the regressors give error bars. Fitted to all runs, how many of the new runs
# are in their intervals of 50, 80 and 95 %, and how wide are the 95 % intervals? The
# simulator has no noise; what the intervals have to cover is what the surrogate does
# not know. The network's are on the safe side, wider than need be; the Gaussian
# process's are closer to their level, though its predictions are not as good.

from scipy.stats import norm

network = candidates["VarProNetRegressor"]
process = candidates["GaussianProcessRegressor"]
mean, std = process.predict(X_test, return_std=True)
coverage = pd.DataFrame(columns=["VarProNetRegressor", "GaussianProcessRegressor"])
for level in (0.5, 0.8, 0.95):
    lower, upper = network.predict_interval(X_test, level)
    inside = (lower < y_test) & (y_test < upper)
    width = norm.ppf((1 + level) / 2) * std
    coverage.loc[level] = inside.mean(), np.mean(np.abs(mean - y_test) < width)
coverage.loc["mean width of 95 %"] = np.mean(upper - lower), np.mean(2 * width)
coverage.round(3)

# %%
# Left: smooth models learn faster than trees. Right: predictions of the new runs
# with their intervals.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
error.plot(ax=left, logx=True, logy=True, marker="o")
left.set(xlabel="Runs of the simulator", ylabel="Error over standard deviation")
left.set_xticks(numbers, labels=numbers)
left.set_yticks([0.05, 0.1, 0.2, 0.5], labels=["5 %", "10 %", "20 %", "50 %"])
left.minorticks_off()
predicted = network.predict(X_test)
lower, upper = network.predict_interval(X_test)
right.plot([y.min(), y.max()], [y.min(), y.max()], "k:", linewidth=1)
right.errorbar(
    predicted,
    y_test,
    xerr=[predicted - lower, upper - predicted],
    fmt="o",
    markersize=3,
    elinewidth=1,
    alpha=0.6,
)
right.set(
    xlabel="Predicted by VarProNetRegressor, 95 % interval",
    ylabel="Simulated logarithm of the peak",
)
plt.show()

# %%
# What it is for
# --------------
# The distribution of the peak if every parameter is anywhere in its range: ten thousand
# evaluations, and the seconds that they take.

from time import perf_counter

many = pd.DataFrame(
    qmc.scale(qmc.Sobol(8, seed=1).random(8192), *ranges.to_numpy()),
    columns=ranges.columns,
)
start = perf_counter()
peaks = np.exp(network.predict(many))
by_surrogate = perf_counter() - start
start = perf_counter()
for row in many.to_numpy()[:50]:
    peak(*row)
by_simulator = (perf_counter() - start) / 50 * len(many)
quantiles = pd.Series(peaks).quantile([0.05, 0.5, 0.95])
pd.concat(
    [
        quantiles.rename(index="{:.0%} of the peaks below".format),
        pd.Series(
            {
                "seconds, surrogate": by_surrogate,
                "seconds, simulator": by_simulator,
            }
        ),
    ]
).to_frame("8,192 parameters").round(3)
