"""A fit of PINNSolver, from the data of the user to the fitted attributes.

In the order of :func:`fit`: the problem and the data are checked (``data``); network,
residual classes and settings are made; the loop runs (``iteration``, ``control``); and
the attributes are set.
"""

import math
import time
from functools import partial

import numpy as np
from sklearn.utils import check_random_state

from sklearn_gn import _switches as switches
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.bayes.laplace import one_or_each
from sklearn_gn.data.rows import check_fits
from sklearn_gn.linalg.factors import affordable
from sklearn_gn.networks._base import (
    activation_function,
    checked_network,
    checked_sizes,
    initial_parameters,
    n_features,
)
from sklearn_gn.pde.residual_classes import traced_class
from sklearn_gn.pinn import control, iteration, windows
from sklearn_gn.pinn import observation_weight as weights
from sklearn_gn.pinn.data import checked_data, problem_sequence, without_data
from sklearn_gn.pinn.dngd import DENSE, DNGD, RANK, gramian_eigenvalues
from sklearn_gn.pinn.enrichment import NAMES, enriched
from sklearn_gn.pinn.model import (
    FIRST_WIDTHS,
    MOST_WEIGHTS,
    DerivativeRows,
    Features,
    Model,
    cast,
    coefficient_values,
    start_parameters,
)
from sklearn_gn.pinn.predictions import Fitted
from sklearn_gn.pinn.residuals import Observed, residual_counts, rows_and_sizes
from sklearn_gn.pinn.statement import unidentified
from sklearn_gn.pinn.units import are_apart, in_units
from sklearn_gn.runtime.fit_loop import FitRun

_LARGEST_INT = np.iinfo(np.int32).max


def fit(solver, X, y, sample_weight, X_val, y_val):
    """Fit a solver to its problem, to observations, or to both."""
    began = time.perf_counter()
    mesh = backend.mesh_of(solver.device)  # a device that there is not is an error
    method = solver._solver_object()
    is_dngd, algorithms = method.name == DNGD.name, {DNGD.name: DNGD}
    if not is_dngd:
        from sklearn_gn.pinn import baselines

        algorithms |= {known.name: known for known in baselines.ALGORITHMS}
    algorithm = method.algorithm(algorithms)
    rng = check_random_state(solver.random_state)
    most_iterations = int(min(solver._most_iterations(), _LARGEST_INT))
    # What the fit chooses: the network with its known functions, how much each class of
    # residuals counts, and the penalties of a plain regression.
    has_equation, sizes = solver.problem is not None, solver.hidden_layer_sizes
    chooses_layers = isinstance(sizes, str)
    chooses_weight = isinstance(solver.observation_weight, str)
    makes_network = is_dngd and solver.network is None
    chooses_network = makes_network and chooses_layers and has_equation
    chooses_penalties = makes_network and chooses_weight and not has_equation
    # The data.
    stages, problem = problem_sequence(solver.problem, chooses_network)
    data = checked_data(solver, problem, X, y, sample_weight, X_val, y_val, rng)
    seed, observed = rng.randint(_LARGEST_INT), data.training is not None
    is_free = chooses_network and (chooses_weight or not observed)
    is_free = is_free and solver.loss_weights == "auto"
    # The problem: its network and its residual classes.
    is_resumed = solver.warm_start and hasattr(solver, "_fitted")
    plain, is_eigen = is_dngd and not (stages or is_resumed or observed), False
    if plain and problem.unknown and switches.on("pinn.eigenvalues"):
        from sklearn_gn.pinn import eigenvalues

        is_eigen = eigenvalues.is_eigenvalue_problem(problem)
        stages = eigenvalues.first_stages(problem, most_iterations) if is_eigen else []
    frame, problems = data.frame, [stage for stage, _ in stages]
    if chooses_network:
        wanted = method.enrichment
        wanted = NAMES if isinstance(wanted, str) else tuple(wanted or ())
        if unknown := sorted(set(wanted) - set(NAMES)):
            raise ValueError(
                f"enrichment contains {unknown}: the known functions are {list(NAMES)}."
            )
        y = data.training.data if observed else None
        frame, problems = enriched(frame, problems, y, data.observed, wanted)
    if chooses_layers:
        small = chooses_network or chooses_penalties
        sizes = FIRST_WIDTHS if small else (50, 50, 50, 50)
    elif has_equation and solver.network is None and np.size(sizes) == 0:
        raise ValueError(
            f"hidden_layer_sizes={sizes!r} makes a solution linear in all axes. "
            "An equation needs one hidden layer or more: give (20, 20), or 'auto'."
        )
    untrained, features = untrained_network(
        frame, solver.network, sizes, rng, solver.dtype, solver.device
    )
    if is_eigen:
        untrained.layers[-1][-1] = 1  # its outputs are about one
    names = ()
    if features is None:
        n, names = len(untrained.layers) - 1, solver.activation
        names = (names,) * n if isinstance(names, str) else tuple(names)
        if len(names) != n:
            raise ValueError(
                f"activation names {len(names)} activations for {n} hidden layers."
            )
        for name in names:
            activation_function(name)
    all_models = models(
        [*problems, frame],
        names,
        features,
        untrained.extra,
        equation=has_equation,
        observed=data.observed if observed else None,
        device=solver.device,
        of_one_size=is_free,
    )
    rows = all_models[-1].classes[0].rows
    if names and set(names) <= {"relu", "identity"} and rows and rows.second:
        raise ValueError(
            f"activation={min(names)!r} has no second derivatives, and the equation "
            "contains some: set activation='tanh' or 'sin'."
        )
    if chooses_network and not stages:
        all_models = (windows.with_windows(*all_models, observed),)
    model = all_models[-1]
    # Whether classes count in units of their sizes: in a free fit, or far apart.
    counts_in_units = solver.loss_weights == "scaled"
    if solver.loss_weights == "auto":
        apart = are_apart(np.array([kind.size for kind in model.classes]))
        counts_in_units = (is_free or apart) and switches.on("pinn.balance")
    for name in ("training", "validation") if observed and counts_in_units else ():
        if (batch := getattr(data, name)) is not None:
            scale = batch.scale / model.classes[-1].size
            data = data._replace(**{name: batch._replace(scale=scale)})
    start = untrained
    if is_resumed:  # it may have grown
        before, grows = solver._fitted.net, chooses_layers
        nets = windows.last_network(before), untrained
        shapes, wanted = (list(map(np.shape, backend.leaves(net))) for net in nets)
        ends = [(len(s), s[0][:1], s[-2][1:], s[-1]) for s in (shapes, wanted)]
        if shapes != wanted and not (grows and ends[0] == ends[1]):
            raise ValueError(
                "warm_start=True continues with a network of the previous layers, "
                f"{shapes[:-1]}, not with one of {wanted[:-1]}."
            )
        start = backend.map_leaves(solver._cast, before if grows else nets[0])
    if chooses_penalties and affordable(len(data.training.x), dimension(start)):
        from sklearn_gn.pinn import regression

        regression.fit(solver, model, start, data, seed)
        return solver
    # What may grow, the points, and what the weight of observations is found from.
    growth, points, sampling, noise = None, control.FEW_POINTS, "sobol", None
    last = windows.last_network(start)
    if has_equation:
        given, sampling = (solver.n_interior, solver.n_boundary), solver.sampling
        finds_points = given == ("auto", "auto") and is_dngd
        if chooses_network or finds_points:
            left = math.inf if solver.max_time is None else solver.max_time
            growth = control.Rules(chooses_network, finds_points, began + left)
            classes = model.problem.residual_classes()
            points = control.points_for(classes, dimension(last))
        points = [n if g == "auto" else g for g, n in zip(given, points, strict=True)]
        if sampling == "auto":
            few_axes = model.problem.domain.dim <= iteration.FEW_AXES
            sampling = "residual" if growth is not None and few_axes else "sobol"
        if chooses_weight and observed:
            n_equations = model.classes[0].n_outputs
            has_functions = len(model.problem.outputs) > n_equations
            noise = weights.observed(data.training, len(data.observed), has_functions)
    # The fall of the loss, and the estimated error, at which the fit ends.
    least_fall, error, usual_loss = control.LEAST_FALL, 0.0, 0.0
    if not has_equation or solver.tol == 0:
        least_fall = control.LEAST_FALL if solver.tol is None else solver.tol
    elif solver.tol is not None:
        error, usual_loss = solver.tol, (solver.tol / control.USUAL_SHARE) ** 2
    elif growth is None:  # all digits that the given layers and points have
        error = float(np.finfo(solver.dtype).eps)
    else:  # with observations, a solution is hardly ever exact to more digits
        error = 1e-5 if observed else 1e-7 if growth.network else 1e-4
    settings = iteration.PINNSettings(
        models=all_models,
        stage_ends=tuple(np.cumsum([n for _, n in stages], dtype=int)),
        sampler=iteration.Sampler(*points, sampling, solver.dtype, counts_in_units),
        steps=iteration.Steps(
            method, solver.damping, solver.rank, most_iterations, mesh
        ),
        resample=solver.resample if has_equation else None,
        tol=np.asarray(least_fall, solver.dtype),
        error=error,
        usual_loss=usual_loss,
        seed=np.int32(seed),
        untrained=untrained,
        growth=growth,
        observed=noise,
    )
    # What a step needs has to fit into memory: a matrix; or rows of the Jacobian, a
    # layer's at a time, and the Gramian with its factor, or its approximation.
    n, numbers = dimension(last), 0
    if method.name == "ssbroyden":
        numbers = 3 * n**2
    elif is_dngd:
        m = sum(points) * max(kind.n_outputs for kind in model.classes)
        m += data.training.data.size if observed else 0
        dense = solver.rank is None and min(m, n) <= DENSE
        numbers = 3 * min(m, n) ** 2 if dense else 2 * m * (solver.rank or RANK)
        numbers += m * max(map(np.size, last.layers))
    check_fits(
        settings.dtype.itemsize * numbers,
        "Take fewer points (n_interior, n_boundary), a smaller network, or "
        "solver='lbfgs', which forms no matrix.",
    )

    # The loop, which the loss on fresh points monitors.
    def loss_on_fresh_points(net):
        if isinstance(net, windows.Pieces):  # infinite where they end before their time
            total = float(np.diff((0.0, *net.stops)) @ net.losses)
            return total if net.stops[-1] == 1 else math.inf
        # A resumed fit has the points of the seed that it began with.
        with backend.scope(solver.dtype, solver.device):
            state = run.final_state if run.log else None
            return float(iteration.fresh_losses(run.data, settings, net, state).sum())

    def fitted(net):
        given = data.observed, data.single_target, data.scaling
        return Fitted(model, net, problem, *given)

    run = FitRun(
        solver,
        algorithm,
        (data.training, data.validation),
        settings,
        [start],
        loss_scale=1.0 if data.scaling is None else data.scaling.loss_scale,
        val_loss=loss_on_fresh_points if has_equation or data.validation else None,
        validation=data.validation,
        began=began,
        monitor="val_loss" if has_equation else "loss",
    )
    solver._run(
        run,
        max_steps=solver._most_iterations(),
        data=data.callback_data,
        attributes=lambda net: {"_fitted": fitted(net), "problem_": problem},
        set_fitted=lambda: _set_fitted(
            solver, run, fitted(run.best_net), data.n_observations
        ),
    )
    if has_equation:
        from sklearn_gn.pinn import findings

        findings.warn_of_doubts(solver)
    return solver


def untrained_network(problem, network, hidden_layer_sizes, rng, dtype, device):
    """Parameters to start from, and the Features of a network of the user's or None."""
    unknown, n_outputs = problem.unknown.values(), problem.n_network_outputs
    if network is None:
        waves = problem.n_functions
        widths = checked_sizes("hidden_layer_sizes", hidden_layer_sizes)
        sizes = problem.n_inputs - waves, *widths, n_outputs
        return cast(start_parameters(rng, sizes, unknown, waves), dtype), None
    network = checked_network(network)
    with backend.scope(dtype, device):
        x = np.zeros((1, problem.n_inputs), dtype)
        params = backend.to_numpy(initial_parameters(network, rng, x))
        params = backend.map_leaves(lambda a: np.asarray(a, dtype), params)
        width = n_features(network, params, x)
    output = cast(start_parameters(rng, (width, n_outputs), unknown), dtype)
    layers = (*backend.leaves(params), *output.layers)
    return output._replace(layers=layers), Features(network, backend.structure(params))


def models(
    problems, names, features, extra, *, equation, observed, device, of_one_size=False
):
    """What is compiled for each problem of a sequence."""
    found, frame = [], () if features else names
    for problem in problems:
        classes, data, rows = [], None, DerivativeRows()
        if observed is not None:
            data = traced_class(problem, "data", Observed(observed), 1, len(observed))
        probed = data if any(map(callable, observed or ())) else None
        if equation:
            axes = problem._draw_directions(np.random.RandomState(0))
            with backend.scope("float64", device):
                all_rows, sizes = rows_and_sizes(problem, extra, axes, probed)
            kinds = problem.residual_classes()
            for kind, needed, own in zip(kinds, all_rows, sizes, strict=False):
                kind, own = in_units(kind, own, of_one_size)
                classes.append(kind._replace(rows=needed, size=own))
            rows = rows if probed is None else all_rows[-1]
        if data is not None:  # in units of the observed outputs
            units = [k for k in observed if not callable(k)] if problem.scale else []
            units = np.array(problem.scale)[units] if units else np.ones(1)
            size = float(np.sqrt(np.mean(np.square(units))))
            classes.append(data._replace(rows=rows, size=size))
        if features is not None:
            classes = [known._replace(rows=None) for known in classes]
        found.append(Model(problem, frame, tuple(classes), features))
    return tuple(found)


# --- fitted attributes ---------------------------------------------------------------


def _set_fitted(solver, run, fitted, n_observations):
    """Set the attributes that only this estimator has."""
    from sklearn_gn.pinn import findings

    state, settings, scale = run.final_state, run.options, run.loss_scale
    model, net, problem = fitted.model, windows.last_network(fitted.net), fitted.problem
    now, growth = state.control, settings.growth
    solver._fitted, solver.problem_, solver._error_estimate = fitted, problem, None
    solver.alpha_, solver.log_evidence_ = {}, math.nan
    solver.n_effective_parameters_ = math.nan
    set_layers(solver, fitted)
    n_residuals = sum(residual_counts(model.classes, state.batches))
    solver._sizes = dimension(net), n_residuals
    # What the findings take from the course of the fit.
    solver._untrained_loss = math.nan if problem is None else now.first_fresh
    solver._why_early, solver._has_settled_weight = findings.why_early(run), None
    if settings.observed is not None:
        solver._has_settled_weight = now.weighing.is_last(now.level.falls)
    solver._is_accurate = bool(now.estimate <= settings.error)
    grows = growth is not None and growth.network and now.level.ended in ("", "time")
    solver._may_grow = grows and control.has_room(net)
    solver._estimated_at_end, solver._solved_until = math.nan, math.inf
    solver.window_ends_ = np.zeros(0)
    solver.enrichment_ = dict(getattr(model.problem, "function_counts", {}))
    if isinstance(fitted.net, windows.Pieces):
        solver.window_ends_ = ends = fitted.net.ends(problem.domain)
        *_, low, high = windows.time_of(problem)
        solved = fitted.net.losses <= windows.SOLVED_LOSS * now.first_fresh
        n_solved = np.argmin([*solved, False])  # before the first that is not
        until = (low, *ends.tolist())[n_solved]
        solver._solved_until = math.inf if until >= high else until
    with backend.scope(solver.dtype, solver.device):
        # Losses in training, on fresh points, and of noise, which is known once the
        # weight of the observations has fallen.
        fresh = run.progress.best.value  # of windows, with the time that they leave out
        if not isinstance(fitted.net, windows.Pieces):
            fresh = run.val_loss(net) if run.val_loss is not None else math.nan
        losses = iteration.losses_of_classes(model, net, state.batches)
        solver.loss_, solver.fresh_loss_ = float(losses.sum()) * scale, fresh * scale
        solver._share, noise = math.nan, 0.0
        if now.weighing.weight != 1:
            noise = iteration.fresh_losses(run.data, settings, net, state)[-1]
        if math.isfinite(now.first_fresh):
            solver._share = max(fresh - float(noise), 0.0) / (now.first_fresh or 1.0)
        solver.gram_spectrum_ = np.zeros(0)
        small = settings.steps.rank is not None or min(solver._sizes) <= MOST_WEIGHTS
        if run.solver.name == "dngd" and small:
            solver.gram_spectrum_ = gramian_eigenvalues(settings, net, state.batches)
        _set_posterior(solver, run, fitted, n_observations)
    with backend.scope("float64", solver.device):
        _set_coefficients(solver, n_observations)
        solver.noise_std_ = math.nan
        if n_observations and fitted.scaling is None and solver._posterior:
            solver.noise_std_ = one_or_each(solver._posterior.noise_deviation())
    if problem is not None:
        solver._unidentified = unidentified(solver, run)
        findings.take_back_convergence(solver, run)


def set_layers(solver, fitted):
    """Set the weights and biases of the layers; those of a user's network are whole."""
    net = windows.last_network(fitted.net)
    layers = [matrix.astype(np.float64) for matrix in net.layers]
    n_whole = 0 if fitted.model.features is None else len(layers) - 1
    own = layers[n_whole:]
    solver.coefs_ = layers[:n_whole] + [matrix[:-1] for matrix in own]
    solver.intercepts_ = [matrix[-1] for matrix in own]


def _set_posterior(solver, run, fitted, n_observations):
    """Set what standard deviations and the estimated error are computed from."""
    from sklearn_gn.pinn.solution import Posterior

    state, model, (n, n_residuals) = run.final_state, fitted.model, solver._sizes
    sampler, seed = run.options.sampler, int(run.options.seed)
    solver._draw_fresh = partial(sampler.fresh, model, seed)
    solver._posterior = solver._window_points = None
    if n_residuals * n > DENSE**2:  # a Jacobian as large as the largest Gramian
        return
    points = run.data.fresh and weights.weighed(run.data.fresh, state.control.weighing)
    net, batches, points = backend.to_numpy((fitted.net, state.batches, points))
    if isinstance(net, windows.Pieces):
        solver._window_points = points
        return
    # Rounding errors of single precision would pass for information.
    given = cast((net, batches, points or batches), np.float64)
    known, functions = (model, *given, n_observations), None
    if fitted.problem is not None and n_observations:
        from sklearn_gn.pinn import unknown_functions as unknown

        given = fitted.problem, fitted.observed, model.classes[0].n_outputs
        functions = unknown.unknown_functions(*given)
    if functions:
        solver._posterior = unknown.FunctionPosterior(*known, functions)
    else:
        solver._posterior = Posterior(*known)


def _set_coefficients(solver, n_observations):
    """Coefficients and their deviations, infinite where nothing determines them."""
    fitted, posterior = solver._fitted, solver._posterior
    extra = windows.last_network(fitted.net).extra
    values = coefficient_values(fitted.model.problem, extra)
    values = {name: np.asarray(value, np.float64) for name, value in values.items()}
    free = without_data(fitted.problem) if values and not n_observations else []
    deviations = {name: np.nan * value for name, value in values.items()}
    if values and posterior is not None:
        for name, size in posterior.coefficient_deviations().items():
            known = (size != 0) & (name not in free)
            deviations[name] = np.where(known, size, np.inf)
    solver._undetermined = [n for n, s in deviations.items() if np.isinf(s).any()]
    solver._said_undetermined = free  # before the fit
    solver.coefficients_, solver.coefficients_std_ = (
        {name: a if np.ndim(a) else float(a) for name, a in found.items()}
        for found in (values, deviations)
    )
