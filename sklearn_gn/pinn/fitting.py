"""A fit of PINNSolver, from the data of the user to the fitted attributes."""

import math
import time

import numpy as np
from sklearn.utils import check_random_state

from sklearn_gn import _switches as switches
from sklearn_gn.arrays import backend
from sklearn_gn.linalg.large_gram import affordable
from sklearn_gn.pinn import baselines, eigenvalues, regression, setup
from sklearn_gn.pinn.data import checked_data, problem_sequence
from sklearn_gn.pinn.dngd import DNGD
from sklearn_gn.pinn.enrichment import NAMES, posed
from sklearn_gn.pinn.findings import (
    warn_if_not_solved,
    warn_of_other_solutions,
)
from sklearn_gn.pinn.fitted import set_fitted
from sklearn_gn.pinn.growth import FIRST_WIDTHS, Rules, points_for
from sklearn_gn.pinn.iteration import PINNSettings, Steps, fresh_loss, fresh_loss_in
from sklearn_gn.pinn.observation_weight import observed, reweighted
from sklearn_gn.pinn.points import FEW_AXES, NoPoints, Sampler
from sklearn_gn.pinn.predictions import Fitted, n_weights
from sklearn_gn.pinn.trust_region import DENSE, RANK
from sklearn_gn.pinn.units import are_apart
from sklearn_gn.pinn.windows import last_network, with_windows
from sklearn_gn.runtime.fit_loop import FitRun
from sklearn_gn.runtime.memory import check_fits

ALGORITHMS = {a.name: a for a in (DNGD, *baselines.ALGORITHMS)}

_LARGEST_INT = np.iinfo(np.int32).max
_FIXED_WIDTHS = (50, 50, 50, 50)  # where "auto" does not grow
_FIXED_POINTS = (500, 200)


def fit(solver, X, y, sample_weight, X_val, y_val):
    """Fit a solver to its problem, to observations, or to both."""
    began = time.perf_counter()
    deadline = began + (math.inf if solver.max_time is None else solver.max_time)
    backend.mesh_of(solver.device)  # a device that there is not is an error
    method = solver._solver_object()
    rng = check_random_state(solver.random_state)
    stages, problem = problem_sequence(
        solver.problem, has_default_network(solver, solver.problem)
    )
    data = checked_data(solver, problem, X, y, sample_weight, X_val, y_val, rng)
    seed = rng.randint(_LARGEST_INT)
    is_eigen = is_new_eigenvalue_problem(solver, stages, data)
    if is_eigen:
        stages = eigenvalues.first_stages(problem, solver._most_iterations())
    untrained, models = network_and_models(solver, stages, data, rng)
    if is_eigen:
        untrained.layers[-1][-1] = 1  # its outputs are about one
    data = weighted_data(solver, models, data)
    start = network_to_begin_with(solver, untrained)
    chosen = regression.has_chosen_penalties(solver, problem)
    if chosen and affordable(len(data.observations.training.x), n_weights(start)):
        regression.fit(solver, models[-1], start, data, seed)
        return solver
    networks = untrained, start
    settings = fit_settings(solver, models, stages, data, networks, seed, deadline)
    check_memory(settings, start, data)
    run = _new_run(solver, method.algorithm(ALGORITHMS), data, settings, start)
    run.began = began

    def fitted(net):
        return Fitted(
            models[-1], net, problem, data.observed, data.single_target, data.scaling
        )

    solver._run(
        run,
        max_steps=solver._most_iterations(),
        data=data.callback_data,
        attributes=lambda net: {"_fitted": fitted(net), "problem_": problem},
        set_fitted=lambda: set_fitted(
            solver, run, fitted(run.best_net), data.n_observations
        ),
    )
    if problem is not None:
        warn_if_not_solved(solver, solver._untrained_loss)
        warn_of_other_solutions(solver)
    return solver


def _new_run(solver, algorithm, data, settings, start):
    """The run of an algorithm, which the loss on fresh points monitors."""

    def loss_on_fresh_points(net):
        # A resumed fit has the points of the seed that it began with.
        with backend.scope(solver.dtype, solver.device):
            if not run.log:
                return fresh_loss(run.data, settings, net)
            return fresh_loss_in(run.final_state, run.data, settings, net)

    has_fresh = data.problem is not None or data.observations.validation is not None
    run = FitRun(
        solver,
        algorithm,
        (data.observations, settings),
        [start],
        loss_scale=1.0 if data.scaling is None else data.scaling.loss_scale,
        val_loss=loss_on_fresh_points if has_fresh else None,
        validation=data.observations.validation,
    )
    if data.problem is not None:
        run.monitor = "val_loss"
    return run


# --- network and settings -------------------------------------------------------------


def network_and_models(solver, stages, data, rng):
    """Return the untrained network, and what is compiled, for each problem."""
    sizes, activations = _widths(solver, data.problem), ()
    frame, problems = data.frame, [problem for problem, _ in stages]
    if has_default_network(solver, data.problem):
        batch = data.observations.training
        y = None if batch is None else batch.data
        names = _chosen_enrichment(solver._solver_object().enrichment)
        frame, problems = posed(frame, problems, y, data.observed, names)
    untrained, features = setup.untrained_network(
        frame, solver.network, sizes, rng, solver.dtype, solver.device
    )
    if features is None:
        activations = setup.activations(solver.activation, sizes)
    models = setup.models(
        [*problems, frame],
        activations,
        features,
        untrained.extra,
        equation=data.problem is not None,
        observed=data.observed if data.observations.training else None,
        device=solver.device,
        of_one_size=_is_free(
            solver, data.problem, data.observations.training is not None
        ),
    )
    _check_second_derivatives(activations, models[-1].classes[0].rows)
    if has_default_network(solver, data.problem) and not stages:
        has_data = data.observations.training is not None
        as_stated = solver.loss_weights == "fixed"
        models = (with_windows(*models, has_data, as_stated),)
    return untrained, models


def _chosen_enrichment(enrichment):
    """Names of the families of known functions that may be added."""
    if enrichment is None:
        return ()
    names = NAMES if isinstance(enrichment, str) else enrichment
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise ValueError(
            f"enrichment contains {unknown}: the known functions are {list(NAMES)}."
        )
    return tuple(names)


def _check_second_derivatives(activations, rows):
    """Raise where the equation has second derivatives and the network has none."""
    names = sorted(set(activations))
    if names and set(names) <= {"relu", "identity"} and rows is not None:
        if any(rows.second):
            raise ValueError(
                f"activation={names[0]!r} has no second derivatives, and the equation "
                "contains some: set activation='tanh' or 'sin'."
            )


def _widths(solver, problem):
    """Widths of the hidden layers to begin with."""
    if not _is_auto(solver.hidden_layer_sizes):
        return solver.hidden_layer_sizes
    small = has_default_network(solver, problem) or regression.has_chosen_penalties(
        solver, problem
    )
    return FIRST_WIDTHS if small else _FIXED_WIDTHS


def has_default_network(solver, problem):
    """Whether the network finds its size, and has functions that the problem needs."""
    auto = _is_auto(solver.hidden_layer_sizes) and solver.network is None
    return auto and problem is not None and solver._solver_object().name == "dngd"


def is_new_eigenvalue_problem(solver, stages, data):
    """Whether a fit begins an eigenvalue problem, and not with an easier one."""
    if stages or data.problem is None or data.observations.training is not None:
        return False
    if solver._solver_object().name != "dngd" or _is_resumed(solver):
        return False
    is_eigen = eigenvalues.is_eigenvalue_problem(data.problem)
    return is_eigen and switches.on("pinn.eigenvalues")


def fit_settings(solver, models, stages, data, networks, seed, deadline):
    """Return the settings of a fit, for its untrained and its first network."""
    untrained, start = networks
    has_equation = solver.problem is not None
    sampler, growth, known = NoPoints(), None, None
    if has_equation:
        grows = has_default_network(solver, models[-1].problem)
        auto = solver.n_interior == solver.n_boundary == "auto"
        free = auto and solver._solver_object().name == "dngd"
        if grows or free:
            budget = math.inf if solver.max_time is None else solver.max_time
            growth = Rules(grows, free, deadline, budget)
        sampler = _sampler(solver, models, growth, n_weights(last_network(start)))
        known = _noisy_observations(solver, models[-1], data)
    steps = Steps(
        solver._solver_object(),
        solver.damping,
        solver.rank,
        int(min(solver._most_iterations(), _LARGEST_INT)),
    )
    return PINNSettings(
        models=models,
        stage_ends=tuple(np.cumsum([n for _, n in stages], dtype=int)),
        sampler=sampler,
        steps=steps,
        balanced=solver.loss_weights == "balanced",
        resample=solver.resample if has_equation else None,
        tol=np.asarray(solver.tol, solver.dtype),
        seed=np.int32(seed),
        growth=growth,
        untrained=untrained,
        observed=known,
        mesh=backend.mesh_of(solver.device),
    )


def _sampler(solver, models, growth, size):
    """What draws the points, for a network of so many weights to begin with."""
    problem, method = models[-1].problem, solver.sampling
    points = _FIXED_POINTS
    if growth is not None:
        points = points_for(problem.residual_classes(), size)
    given = solver.n_interior, solver.n_boundary
    points = [n if g == "auto" else g for g, n in zip(given, points, strict=True)]
    if _is_auto(method):
        adaptive = growth is not None and problem.domain.dim <= FEW_AXES
        method = "residual" if adaptive else "sobol"
    return Sampler(*points, method, solver.dtype, _counts_in_units(solver, models))


def _noisy_observations(solver, model, data):
    """What is known of observations whose weight the fit chooses; None without them."""
    chosen = solver.observation_weight == "auto" and solver.loss_weights != "balanced"
    if not chosen or model.classes[-1].residual.name != "data":
        return None
    n_equations = model.classes[0].residual.n_outputs
    has_functions = len(model.problem.outputs) > n_equations
    return observed(data.observations.training)._replace(has_functions=has_functions)


def weighted_data(solver, models, data):
    """Return the data, with observations that count as classes of their size do."""
    known = models[-1].classes[-1]
    if known.residual.name != "data" or not _counts_in_units(solver, models):
        return data
    factor = known.size**-2
    batches = [batch and reweighted((batch,), factor)[0] for batch in data.observations]
    return data._replace(observations=type(data.observations)(*batches))


def _counts_in_units(solver, models):
    """Whether classes count in units of their sizes: in a free fit, or far apart."""
    if solver.loss_weights != "auto":
        return solver.loss_weights == "scaled"
    known = models[-1].classes
    free = _is_free(solver, models[-1].problem, known[-1].residual.name == "data")
    apart = are_apart(np.array([one.size for one in known]))
    return (free or apart) and switches.on("pinn.balance")


def _is_free(solver, problem, has_data):
    """Whether neither the layers nor the weights of the residuals are given."""
    if not has_default_network(solver, problem) or solver.loss_weights != "auto":
        return False
    return not has_data or solver.observation_weight == "auto"


def check_memory(settings, net, data):
    """Raise a ValueError if the matrix of a step would not fit into memory."""
    sampler, solver = settings.sampler, settings.steps.solver.name
    outputs = [known.residual.n_outputs for known in settings.models[-1].classes]
    n_residuals, n = 0, n_weights(last_network(net))
    if isinstance(sampler, Sampler):
        n_residuals += sampler.n_interior * outputs[0]
        n_residuals += sampler.n_boundary * max(outputs)
    if data.observations.training is not None:
        n_residuals += data.observations.training.data.size
    if solver == "ssbroyden":
        numbers = 3 * n**2
    elif solver != "dngd":
        return
    else:  # rows of the Jacobian, a layer's at a time, and the matrix with its factor
        numbers = n_residuals * max(np.size(a) for a in last_network(net).layers)
        small = min(n_residuals, n)
        if settings.steps.rank is None and small <= DENSE:
            numbers += 3 * small**2
        else:
            numbers += 2 * n_residuals * (settings.steps.rank or RANK)
    check_fits(
        settings.dtype.itemsize * numbers,
        "Take fewer points (n_interior, n_boundary), a smaller network, or "
        "solver='lbfgs', which forms no matrix.",
    )


def network_to_begin_with(solver, new):
    """Return a new network, or the previous one with ``warm_start``."""
    if not _is_resumed(solver):
        return new
    before = solver._fitted.net
    last = last_network(before)
    if _is_auto(solver.hidden_layer_sizes) and _has_layers_of(new, last):
        return backend.map_leaves(solver._cast, before)
    before = last
    shapes = [np.shape(leaf) for leaf in backend.leaves(before)]
    wanted = [np.shape(leaf) for leaf in backend.leaves(new)]
    if shapes != wanted:
        raise ValueError(
            "warm_start=True continues with a network of the previous layers, "
            f"{shapes[:-1]}, not with one of {wanted[:-1]}."
        )
    return backend.map_leaves(solver._cast, before)


def _is_resumed(solver):
    return solver.warm_start and hasattr(solver, "_fitted")


def _has_layers_of(new, before):
    """Whether two networks differ in the widths of hidden layers at most."""
    same = len(new.layers) == len(before.layers)
    ends = [
        (len(net.layers[0]), net.layers[-1].shape[1], net.extra.shape)
        for net in (new, before)
    ]
    return same and ends[0] == ends[1]


def _is_auto(value):
    return isinstance(value, str) and value == "auto"
