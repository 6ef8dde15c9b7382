"""
The rates of an epidemic from fourteen numbers
==============================================

In January 1978 influenza came to a boarding school in England. Fourteen counts of the
boys in bed tell how contagious it was: how many others each of them infected at first,
and how well the counts determine that.
"""

# %%
# The data
# --------
# Boys confined to bed, day by day, of 763 in the school ("Influenza in a boarding
# school", British Medical Journal 1978, p. 587).

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

boys = 763
in_bed = np.array([3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4])
day = np.arange(14.0)
share = in_bed / boys

# %%
# The equations
# -------------
# The classic model of Kermack and McKendrick: a share :math:`s` is susceptible, a share
# :math:`i` is ill,
#
# .. math:: s' = -R_0 \gamma s i, \qquad i' = R_0 \gamma s i - \gamma i.
#
# One divided by :math:`\gamma` is the mean number of days in bed, and the reproduction
# number :math:`R_0` is how many others a boy infects while all are susceptible. The
# share of the ill grows a hundredfold within days. An unknown function should be of
# size one and vary slowly, so we solve for the logarithm of :math:`i`, which divides
# the second equation by :math:`i`. What is not known are the two rates and the share of
# the ill on the first day.

from sklearn_gn import PINNSolver
from sklearn_gn.pde import Initial, Interval, Problem, Unknown, d


def epidemic(u, t, R0, gamma):
    s, log_i = u["s"], u["log_i"]
    infection = R0 * gamma * s(t)
    return (
        d(s, "t")(t) + infection * jnp.exp(log_i(t)),
        d(log_i, "t")(t) - infection + gamma,
    )


def first_day(t, log_i0):
    return jnp.stack([1 - jnp.exp(log_i0), log_i0])


def ill(u, t):
    return jnp.exp(u["log_i"](t))


problem = Problem(
    epidemic,
    Interval(0, 13),
    [Initial(first_day)],
    outputs=("s", "log_i"),
    coefficients={
        "R0": Unknown(3.0, positive=True),
        "gamma": Unknown(0.5, positive=True),
        "log_i0": Unknown(np.log(share[0])),
    },
)


# %%
# The fit
# -------
# Network and coefficients are found together: the network has to satisfy the equations,
# and what is observed of it, :math:`i`, to pass through the counts. Their noise is
# estimated along the way.
#
# An epidemic that never happens, with a share of the ill that stays at its mean,
# satisfies the equations too. A network that is led there begins anew from other
# weights; if none escapes, ``noise_std_`` is as large as the counts vary, and a warning
# says that the rates are not determined.

solver = PINNSolver(problem, observed_outputs=[ill], random_state=0)
solver.fit(day[:, None], share)
solver.diagnose()

# %%
# The same by integration and least squares
# -----------------------------------------
# With three unknowns one can as well integrate the equations numerically and hand the
# misfits to :func:`scipy.optimize.least_squares`; for this small problem that is the
# quicker way. It has neither network nor collocation points, and so it checks both the
# estimates and their standard errors, which come from the Jacobian in the usual way.

from scipy.integrate import solve_ivp
from scipy.optimize import least_squares


def simulate(parameters, times=day):
    R0, gamma, log_i0 = parameters
    i0 = np.exp(log_i0)
    path = solve_ivp(
        lambda t, u: gamma * u[1] * np.array([-R0 * u[0], R0 * u[0] - 1]),
        (0, 13),
        [1 - i0, i0],
        t_eval=times,
        rtol=1e-9,
        atol=1e-12,
    )
    return path.y[1]


def misfit(parameters):
    return simulate(parameters) - share


reference = least_squares(misfit, [2.0, 0.5, -5.0])
noise_variance = 2 * reference.cost / (len(day) - 3)
jacobian = reference.jac
covariance = noise_variance * np.linalg.inv(jacobian.T @ jacobian)
table = pd.DataFrame(
    {
        "PINNSolver": solver.coefficients_,
        "standard error": solver.coefficients_std_,
        "least squares": dict(zip(solver.coefficients_, reference.x, strict=True)),
        "standard error ": dict(
            zip(solver.coefficients_, np.sqrt(np.diag(covariance)), strict=True)
        ),
    }
)
table.loc["noise"] = [solver.noise_std_, np.nan, np.sqrt(noise_variance), np.nan]
table.round(4)

# %%
# The answer
# ----------
# Intervals of 95 %, from Student's t distribution with eleven degrees of freedom. Each
# boy infected about four others at first, and spent a little more than two days in bed.
# Both intervals hold for this model, with noise of equal size every day. The noise is
# estimated as 18 boys, and the misfits of neighbouring days resemble each other, so the
# true uncertainty is larger.

from scipy.stats import t as student

width = student.ppf(0.975, len(day) - 3) * table["standard error"]
estimate = table["PINNSolver"]
limits = pd.DataFrame({"from": estimate - width, "estimate": estimate})
limits["to"] = estimate + width
limits.loc["days in bed"] = 1 / limits.loc["gamma"].to_numpy()[::-1]
limits.loc[["R0", "gamma", "days in bed"]].round(2)

# %%
# The curve of the ill with its 95 % band, and the standardised misfits of both fits.

times = np.linspace(0, 13, 261)
mean, std = solver.predict(times[:, None], return_std=True)
log_i, log_i_std = mean[:, 1], std[:, 1]
figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4), width_ratios=(2, 1), layout="constrained"
)
left.fill_between(
    times,
    boys * np.exp(log_i - 1.96 * log_i_std),
    boys * np.exp(log_i + 1.96 * log_i_std),
    alpha=0.3,
    linewidth=0,
    label="95 % band",
)
left.plot(times, boys * np.exp(log_i), label="In bed, PINNSolver")
left.plot(
    times, boys * simulate(reference.x, times), "k:", label="In bed, least squares"
)
left.plot(times, boys * mean[:, 0], "C2", label="Susceptible")
left.plot(day, in_bed, "ko", markersize=5, label="Counted")
left.set(xlabel="Day", ylabel="Boys")
left.legend()
fitted = np.exp(solver.predict(day[:, None])[:, 1])
right.axhline(0, color="0.3", linewidth=0.8)
right.plot(day, boys * (share - fitted), "o-", label="PINNSolver")
right.plot(day, -boys * reference.fun, "kx", label="Least squares")
right.set(xlabel="Day", ylabel="Counted minus fitted (boys)", xticks=day[::3])
right.legend()
plt.show()
