"""Differential equations: demos, inverse problems, and what practitioners bring.

All are solved with default settings, but for the number of iterations: a default fit
may go on for a minute, and thirty of them for half an hour. A fit here ends after 100
iterations, and after 350 where an ordinary differential equation is followed in time
without observations: that takes many iterations, in windows of time, but quick ones.
Where ``tol`` ends it earlier, nothing is capped: so does a flame front, which takes a
thousand. Iterations and not seconds, so that the accuracy does not depend on the
machine.

``error`` is the relative L2 error at given points over the outputs that are compared,
or the largest relative error of a coefficient. ``share_honest`` is one where
``error_estimate_`` is within a factor of five of the error, or is refused; large
networks, for which it takes long, go without it. Inverse problems have noise in their
observations and are solved for up to three draws of it: ``error`` is the median, and
``coverage`` the share of the coefficients inside their 95 % intervals.
"""

import warnings
from functools import partial
from statistics import median

from benchmarks._gates.common import Row, timed_fits

ITERATIONS, ITERATIONS_IN_TIME = 100, 350  # the second of equations in time alone
FEW_WEIGHTS = 700  # of networks whose error is estimated in a second or two
HONEST = 5.0  # factor between the estimated and the true error
WORST = 1e3  # error of an answer that is not finite

DEMOS = {
    "poisson_multiscale": "two scales of waves on an interval",
    "volterra_ide": "an equation with an integral over the past",
    "reaction_rate_field": "an unknown function from observations of another",
    "laplace_disk": "polar coordinates, periodic in the angle",
    "l_shape": "Poisson's equation on an L, whose inner corner is singular",
    "helmholtz_hole": "Helmholtz' equation about a hole",
    "kovasznay": "flow behind a grid",
    "black_scholes": "an option, whose payoff has a kink",
    "van_der_pol": "an oscillator of relaxation",
    "spread_in_persons": "an epidemic, counted in persons",
    "two_materials": "an output for each of two materials",
    "radiating_plate": "a plate that radiates, in kelvin",
}
INVERSE = {  # description, deviation of the noise in that of the observations, draws
    "growth": ("rate and limit of logistic growth", 0.05, 3),
    "epidemic": ("rates of an epidemic from the number of the infected", 0.02, 3),
    "lorenz_inverse": ("three coefficients of Lorenz' equations", 0.01, 1),
    "diffusion_inverse": ("diffusivity from one profile", 0.02, 2),
    "inlet": ("a value on the boundary from readings inside", 0.02, 3),
    "ageing": ("a rate that is far from where the search begins", 0.01, 1),
}
PRACTITIONERS = {
    "hot_pin": "a pin in air, whose conductivity depends on temperature",
    "steel_bar": "a loaded bar in metres and pascals",
    "half_loaded_beam": "a beam with a load that begins at two thirds of it",
    "tapered_column": "buckling load, an eigenvalue",
    "enzyme": "kinetics of an enzyme",
    "batch_reactor": "a reaction that runs away, by Arrhenius' law",
    "catalyst_pellet": "reaction and diffusion in a sphere",
    "drawdown_of_a_well": "an aquifer about a well that is pumped",
    "quenched_plate": "a hot plate in a bath",
    "cavity": "a flow that a moving lid drives",
    "plate_with_a_hole": "elasticity about a hole in metres and pascals",
    "unstable_flame": "a flame front, up to chaos",
}


def demo_of(name):
    """The statement, the data and the reference of a row."""
    from benchmarks._demos import DEMOS, TEXTBOOK
    from benchmarks._gates import practitioners

    return {**DEMOS, **TEXTBOOK, **practitioners.ROWS}[name]()


def fitted(demo, *data):
    """A default fit, and its seconds."""
    from sklearn_gn import PINNSolver

    in_time = demo.problem.domain.axes == ("t",) and not data

    def make(seed):
        settings = {"max_iter": ITERATIONS_IN_TIME if in_time else ITERATIONS}
        settings |= demo.solver
        return PINNSolver(demo.problem, random_state=seed, **settings)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the error shows what they say
        return timed_fits(make, *data, later=0)


def solved(name):
    """Figures of a solution, or of coefficients that need no observations."""
    import numpy as np

    from benchmarks._demos.common import largest_error, relative_error, test_points

    demo = demo_of(name)
    model, figures = fitted(demo, *demo.data)
    if demo.truth:
        return {**figures, "error": largest_error(model.coefficients_, demo.truth)}
    points, values = test_points(demo)
    n_weights = sum(a.size for a in (*model.coefs_, *model.intercepts_))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error = relative_error(demo.problem, model.predict(points), values)
        if not demo.field and n_weights <= FEW_WEIGHTS:
            estimate = model.error_estimate_
            honest = error / HONEST <= estimate <= error * HONEST
            figures["share_honest"] = float(honest or np.isnan(estimate))
    figures["error"] = error if np.isfinite(error) else WORST
    return figures


def identified(name, noise, n_draws):
    """Figures of coefficients from several draws of noisy observations."""
    import numpy as np
    from scipy.stats import norm

    from benchmarks._demos.common import largest_error

    demo = demo_of(name)
    X, y = demo.data
    names, truth = list(demo.truth), np.array(list(demo.truth.values()))
    figures, errors, inside = {}, [], []
    for seed in range(n_draws):
        draws = np.random.default_rng(seed).standard_normal(np.shape(y))
        model, seconds = fitted(demo, X, y + noise * np.std(y, axis=0) * draws)
        figures = figures or seconds
        errors.append(largest_error(model.coefficients_, demo.truth))
        found = np.array([float(model.coefficients_[name]) for name in names])
        bars = np.array([float(model.coefficients_std_[name]) for name in names])
        inside.append(np.abs(found - truth) <= norm.ppf(0.975) * bars)
    return {**figures, "error": median(errors), "coverage": float(np.mean(inside))}


def rows(data):
    """The rows; none of them needs data."""
    forward = {
        name: Row(description, partial(solved, name))
        for name, description in {**DEMOS, **PRACTITIONERS}.items()
    }
    return forward | {
        name: Row(description, partial(identified, name, *noise))
        for name, (description, *noise) in INVERSE.items()
    }
