"""Seconds of a step of PINNSolver by part, and the loss of others in twenty times ours.

step_*: the Jacobian, the Gramian beside the machine's rate of float64 matrix products,
its factors, and whole steps. race: the losses that Levenberg-Marquardt of optimistix
and NysNewton-CG of DeepXDE (after Adam and L-BFGS) reach in 100 seconds, and the
seconds that we need for them.
"""

import time
from functools import partial

import jax
import numpy as np
from jax import lax
from sklearn.base import clone

from benchmarks import pinn_allen_cahn, pinn_kovasznay
from benchmarks._pinn import (
    QUICK_SECONDS,
    Recorder,
    Scorer,
    columns,
    described,
    problem_of,
    quick_case,
    recorded_fit,
    seconds_to,
    seeds_of,
    short,
)
from benchmarks._pinn_peers import NOTES as PEER_NOTES
from benchmarks._pinn_peers import Peer, ended, missing, run_peer
from benchmarks._report import progress, settings, summary, target
from benchmarks._timing import compile_seconds, timed_fit
from sklearn_gn.arrays import backend
from sklearn_gn.linalg import jacobian as operators
from sklearn_gn.pinn import dngd
from sklearn_gn.pinn.residuals import jacobian
from sklearn_gn.solvers import DNGD

CASES = {
    "step_kovasznay": pinn_kovasznay.CASE,
    "step_kovasznay_larger": pinn_kovasznay.CASE._replace(
        solver=clone(pinn_kovasznay.CASE.solver).set_params(
            n_interior=500, n_boundary=200
        )
    ),
    "step_allen_cahn": pinn_allen_cahn.CASE,
    "step_kovasznay_default": pinn_kovasznay.CASE._replace(
        solver=clone(pinn_kovasznay.CASE.solver).set_params(
            # Network and points with which a fit of the defaults begins.
            hidden_layer_sizes=(20, 20),
            n_interior=317,
            n_boundary=204,
        )
    ),
}
PEERS = {
    "optimistix": Peer("optimistix", "lm"),
    "deepxde_nncg": Peer("deepxde", "nncg"),
}
ITERATIONS = 18  # before the steps that are timed: no new points are due then
ROUNDS = 7
GEMM_SIZE = 2048
GEMM_SHARE = 0.6
STEP_SHARE = 1.5  # of Gramian and Cholesky factor
RACE_SECONDS = 100.0
HEAD_START = 20  # times less that we need
PLAIN = {"solver": DNGD(damping_rule="loss", geodesic_acceleration=False)}
WARM_UP = {"solver": DNGD(single_precision_iter=25)}  # of the race

NOTES = (
    "step_*: medians over rounds of compiled functions, from the state of a fit after "
    f"{ITERATIONS} iterations. gramian_gflops counts m n min(m, n) operations for m "
    "residuals and n weights, since only half of the symmetric matrix has to be "
    "formed; the Jacobian is multiplied out on the way, which is not counted. "
    "gemm_gflops is the faster of numpy's and XLA's product of two square matrices of "
    f"{GEMM_SIZE} rows.",
    "trials_seconds is what is left of a step of the default, the trust region, after "
    "Jacobian and Gramian: the radii tried, each with a factor, an acceleration "
    "and a loss. factors is their number in the timed step. plain is "
    "damping_rule='loss' without geodesic acceleration. eigh_seconds is no part of a "
    "step; it is what the radii would cost by an eigendecomposition.",
    "race: seconds_to_NAME are those until our loss of training is that of the peer at "
    "the end of its time. Our first iterations are in single precision.",
)


# --- a step by part ------------------------------------------------------------------


def seconds_of(function, *arguments):
    """Seconds of a call of something compiled."""
    begun = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - begun


def gemm_gflops(size):
    """The machine's rate."""
    a = np.random.default_rng(0).standard_normal((size, size))
    product = jax.jit(lambda a: a @ a)
    with jax.enable_x64(True):
        on_device = jax.device_put(a)
        seconds_of(product, on_device)
        seconds = [seconds_of(product, on_device) for _ in range(ROUNDS)]
    seconds += [seconds_of(np.matmul, a, a) for _ in range(ROUNDS)]
    return 2e-9 * size**3 / min(seconds)


class Stepper:
    """A fit that has come some way, and its next step."""

    def __init__(self, solver, iterations):
        recorder = Recorder(lambda model: 0.0, np.inf)
        solver = clone(solver).set_params(
            max_iter=iterations, tol=0.0, random_state=0, max_time=None
        )
        timed_fit(solver.set_callbacks(recorder), None, None)
        self.state, self.options = recorder.state, recorder.options
        # Without the error that the log reports.
        self.points = recorder.rows._replace(reference=None)
        self.model = self.options.models[-1]
        _, report = dngd.step(self.points, self.state, self.options)  # compiles
        self.n_factors = report.inner_iterations

    def seconds(self):
        """Seconds of the step, the same one every time."""
        return seconds_of(dngd.step, self.points, self.state, self.options)

    def sizes(self):
        """Residuals and weights."""
        pairs = zip(self.model.classes, self.state.batches, strict=True)
        kinds = ((getattr(k, "residual", k), batch) for k, batch in pairs)  # by trees
        m = sum(len(batch.x) * kind.n_outputs for kind, batch in kinds)
        return m, sum(leaf.size for leaf in jax.tree.leaves(self.state.net))


def gramian(r, parts, net):
    """The smaller one of ``J J^T`` and ``J^T J``."""
    dual = len(r) < sum(leaf.size for leaf in jax.tree.leaves(net))
    return operators.gramian(parts) if dual else operators.normal_matrix(parts)


def part_functions(stepper):
    """Compiled parts of a step with their arguments, by name."""
    net, batches = stepper.state.net, stepper.state.batches
    jacobian_of = jax.jit(partial(jacobian, stepper.model))
    gramian_of = jax.jit(gramian)
    factor = jax.jit(partial(lax.linalg.cholesky, symmetrize_input=False))
    eigen = jax.jit(partial(lax.linalg.eigh, symmetrize_input=False))
    r, parts = jacobian_of(net, batches)
    matrix = gramian_of(r, parts, net)
    shifted = matrix + 1e-6 * matrix.max() * np.eye(len(matrix))
    return {
        "jacobian_seconds": (jacobian_of, net, batches),
        "gramian_seconds": (gramian_of, r, parts, net),
        "cholesky_seconds": (factor, shifted),
        "eigh_seconds": (eigen, matrix),
    }


def step_rounds(solver, iterations, rate):
    """Figures of some rounds, of the solver as it is and of the plain one."""
    own, plain = (
        Stepper(clone(solver).set_params(**changes), iterations)
        for changes in ({}, PLAIN)
    )
    m, n = own.sizes()
    operations = m * n * min(m, n)
    functions = part_functions(own)
    for call in functions.values():
        seconds_of(*call)  # compiles
    ours, others = [], []
    for _ in range(ROUNDS):
        run = {name: seconds_of(*call) for name, call in functions.items()}
        run["step_seconds"] = own.seconds()
        parts = ("jacobian_seconds", "gramian_seconds")
        run["trials_seconds"] = run["step_seconds"] - sum(run[part] for part in parts)
        run["factors"] = own.n_factors
        run["gramian_gflops"] = 1e-9 * operations / run["gramian_seconds"]
        run["gemm_gflops"] = rate
        run["gemm_share"] = run["gramian_gflops"] / rate
        ours.append(run)
        least = run["gramian_seconds"] + run["cholesky_seconds"]
        run["over_gramian_cholesky"] = run["step_seconds"] / least
        seconds = plain.seconds()
        over = seconds / least
        others.append({"step_seconds": seconds, "over_gramian_cholesky": over})
    return (m, n), ours, others


def step_problem(case, iterations, rate):
    """The answer for one problem."""
    with backend.scope("float64"):
        (m, n), ours, others = step_rounds(case.solver, iterations, rate)
    changed = settings(case.solver)
    methods = {
        "default": {"settings": changed, "runs": ours, "summary": summary(ours)},
        "plain": {
            "settings": settings(clone(case.solver).set_params(**PLAIN)),
            "runs": others,
            "summary": summary(others),
        },
    }
    progress({k: v["median"] for k, v in methods["default"]["summary"].items()})
    return {
        "description": f"{described(case)}; {m} residuals, {n} weights",
        "methods": methods,
        "target_gemm": target(
            methods, "default", "gemm_share", "median", at_least=GEMM_SHARE
        ),
        **{
            f"target_{which}_step": target(
                methods, which, "over_gramian_cholesky", "median", STEP_SHARE
            )
            for which in ("default", "plain")
        },
    }


# --- the race ------------------------------------------------------------------------


def peer_results(args, peer, case, seeds, recorders, seconds):
    """The results of a peer on all seeds, or a sentence that says why not."""
    if reason := missing(args.peers, peer):
        return reason
    results = [
        run_peer(args.peers, peer, case.solver, recorder, seed, seconds)
        for seed, recorder in zip(seeds, recorders, strict=True)
    ]
    failed = any(result is None or not result["points"] for result in results)
    return "it failed" if failed else results


def answer_of(changed, seeds, points):
    """What a result says of a method, by the last points of its runs."""
    runs = [{"seed": s, **point} for s, point in zip(seeds, points, strict=True)]
    return {"settings": changed, "runs": runs, "summary": summary(runs)}


def race(case, args, seconds):
    """Losses of the peers, and our seconds to them."""
    seeds = seeds_of(args, seconds)
    score = Scorer(problem_of(case.solver), case.outputs)
    compiling = compile_seconds(short(case.solver), None, None)
    bound = seconds / HEAD_START
    limit = 2 * bound  # so that a target that is missed still has a figure
    recorders = [recorded_fit(case.solver, score, limit, seed)[1] for seed in seeds]
    last = [recorder.points[-1] for recorder in recorders]
    own = answer_of(settings(case.solver), seeds, last)
    methods = {"dngd": {**own, "compile_seconds": compiling}}
    curves, skipped = {"dngd": columns(recorders[0].points)}, {}
    for name, peer in PEERS.items():
        results = peer_results(args, peer, case, seeds, recorders, seconds)
        if isinstance(results, str):
            skipped[name] = results
            continue
        last = [ended(result["points"], seconds) for result in results]
        changed = {"version": results[0]["version"], **results[0]["settings"]}
        methods[name] = answer_of(changed, seeds, last)
        curves[name] = columns(results[0]["points"])
        for run, recorder, point in zip(own["runs"], recorders, last, strict=True):
            run[f"seconds_to_{name}"] = seconds_to(recorder.points, point["loss"])
    methods["dngd"]["summary"] = summary(own["runs"])
    return {
        "description": f"{described(case)}; {seconds:g} seconds, ours {limit:g}",
        "methods": methods,
        "curves": curves,
        "skipped": skipped,
        **{
            f"target_{name}": target(
                methods, "dngd", f"seconds_to_{name}", "median", bound
            )
            for name in methods
            if name != "dngd"
        },
    }


def run(args):
    rate = gemm_gflops(64 if args.quick else GEMM_SIZE)
    iterations = 3 if args.quick else ITERATIONS
    answers = {}
    for name in args.only or (*CASES, "race"):
        progress(f"--- {name}")
        case = CASES.get(name, pinn_kovasznay.CASE)
        case = quick_case(case) if args.quick else case
        if name in CASES:
            answers[name] = step_problem(case, iterations, rate)
        else:
            solver = clone(case.solver).set_params(**WARM_UP)
            case = case._replace(solver=solver)
            default = HEAD_START * QUICK_SECONDS if args.quick else RACE_SECONDS
            answers[name] = race(case, args, args.seconds or default)
        # A run that is cut off keeps what it has; --only goes on from there.
        args.write({"problems": answers, "notes": [*NOTES, *PEER_NOTES]})
    return {"problems": answers, "notes": [*NOTES, *PEER_NOTES]}
