"""
From an equation to an inverse problem
======================================

A pendulum, in four steps: solve its equation, check the solution, find its damping from
noisy measurements, and see how far the interval of the answer can be trusted.
"""

# %%
# Step 1: state the equation
# --------------------------
# The angle of a pendulum with friction follows
#
# .. math:: \theta'' + c \, \theta' + \omega^2 \sin \theta = 0.
#
# A residual is a function of the field ``u``, the point and the coefficients;
# ``d(u, "t", "t")`` is the second derivative. ``Initial`` gives the angle and, with
# ``order=1``, the velocity at the start.

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from sklearn_gn import PINNSolver
from sklearn_gn.pde import Initial, Interval, Problem, Unknown, d


def pendulum(u, t, c, omega):
    return d(u, "t", "t")(t) + c * d(u, "t")(t) + omega**2 * jnp.sin(u(t))


released = [Initial(1.0), Initial(0.0, order=1)]
forward = Problem(
    pendulum,
    Interval(0, 6),
    released,
    coefficients={"c": 0.4, "omega": 1.5},
)

# %%
# Step 2: solve it, and read what the fit says
# --------------------------------------------
# There are no data: ``fit()`` takes nothing. Two layers of twenty neurons are plenty
# for so smooth a function; without ``hidden_layer_sizes`` the solver finds a size,
# which takes longer. ``diagnose`` says whether the equation holds, and the log how it
# came to hold.

from sklearn_gn.plotting import ConvergenceDisplay

settings = {"hidden_layer_sizes": (20, 20), "random_state": 0}
solver = PINNSolver(forward, tol=1e-3, **settings).fit()
solver.diagnose()

# %%

figure, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ConvergenceDisplay.from_estimator(solver, ax=ax)
plt.show()

# %%
# Step 3: check it
# ----------------
# Never trust a solution because its loss is small. Here an integrator is at hand, whose
# error is controlled.

from scipy.integrate import solve_ivp

t = np.linspace(0, 6, 121)


def integrate(c, omega, times):
    path = solve_ivp(
        lambda t, u: [u[1], -c * u[1] - omega**2 * np.sin(u[0])],
        (0, 6),
        [1.0, 0.0],
        t_eval=times,
        method="LSODA",
        rtol=1e-10,
        atol=1e-12,
    )
    return path.y


angle, velocity = integrate(0.4, 1.5, t)
pd.Series(
    {
        "angle": np.abs(solver.predict(t[:, None]) - angle).max(),
        "velocity": np.abs(solver.derivative(t[:, None], "t") - velocity).max(),
    },
    name="largest error",
).to_frame()

# %%
# Step 4: turn it round
# ---------------------
# Now friction and frequency are unknown, and forty angles have been measured with noise
# of 0.05. The two numbers become ``Unknown``, with the value where the search begins.

rng = np.random.default_rng(0)
measured_at = np.sort(rng.uniform(0, 6, 40))
measured = integrate(0.4, 1.5, measured_at)[0] + 0.05 * rng.standard_normal(40)
inverse = Problem(
    pendulum,
    Interval(0, 6),
    released,
    coefficients={"c": Unknown(0.1, positive=True), "omega": Unknown(1.0)},
)
finder = PINNSolver(inverse, **settings).fit(measured_at[:, None], measured)
finder.diagnose()

# %%
# Estimates and intervals, compared with least squares on the integrator. That
# is possible here because an ordinary differential equation is quickly integrated.

from scipy.optimize import least_squares

reference = least_squares(
    lambda p: integrate(*p, measured_at)[0] - measured, [0.1, 1.0]
)
noise_variance = 2 * reference.cost / (len(measured) - 2)
covariance = noise_variance * np.linalg.inv(reference.jac.T @ reference.jac)
table = pd.DataFrame(
    {
        "true": [0.4, 1.5, 0.05],
        "PINNSolver": [*finder.coefficients_.values(), finder.noise_std_],
        "standard error": [*finder.coefficients_std_.values(), np.nan],
        "least squares": [*reference.x, np.sqrt(noise_variance)],
        "standard error ": [*np.sqrt(np.diag(covariance)), np.nan],
    },
    index=["c", "omega", "noise"],
)
table.round(4)

# %%
# The angle with its band. It is narrower than the scatter of the measurements, since
# the equation combines the information of all forty.

mean, std = finder.predict(t[:, None], return_std=True)
figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.fill_between(
    t, mean - 1.96 * std, mean + 1.96 * std, alpha=0.4, label="95 % band", linewidth=0
)
ax.plot(t, mean, label="Found")
ax.plot(t, angle, "k:", label="True")
ax.plot(measured_at, measured, "o", color="0.5", markersize=4, label="Measured")
ax.set(xlabel="Time", ylabel="Angle")
ax.legend()
plt.show()

# %%
# Step 5: are the intervals honest?
# ---------------------------------
# An interval of 95 % should contain the true value in 95 of 100 repetitions of the
# experiment. Since both ways agree, the faster one may answer: 100 simulated
# experiments by least squares. (For a partial differential equation, repeat a few fits
# of the solver itself.)

inside = []
for _ in range(100):
    again = integrate(0.4, 1.5, measured_at)[0] + 0.05 * rng.standard_normal(40)
    fit = least_squares(
        lambda p, y=again: integrate(*p, measured_at)[0] - y, [0.4, 1.5]
    )
    covariance = 2 * fit.cost / 38 * np.linalg.inv(fit.jac.T @ fit.jac)
    inside.append(np.abs(fit.x - [0.4, 1.5]) < 2.02 * np.sqrt(np.diag(covariance)))
pd.Series(np.mean(inside, axis=0), index=["c", "omega"], name="coverage").to_frame()
