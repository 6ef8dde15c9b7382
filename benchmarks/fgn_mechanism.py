"""Cost of FGN steps beside Adam and SGN, and what is kept of the softmax curvature.

Figure 2 of Korbit and Zanon, "Fast Gauss-Newton for multiclass cross-entropy": (a)
seconds per compiled step of an affine softmax head over the number of classes, (b) the
traces of the kept and the dropped part of the curvature, (c) the share of the decrease
of the full damped model that the FGN step reaches.
"""

import sys
import time
from statistics import median
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._report import summary, target
from sklearn_gn import solvers
from sklearn_gn.arrays import backend
from sklearn_gn.optim.multinomial import margins
from sklearn_gn.softmax_head.head import (
    AffineHead,
    BatchedRows,
    HeadOptions,
)
from sklearn_gn.softmax_head.minibatch import (
    ALGORITHMS,
    Walk,
    adam_epoch,
    adam_start,
    feature_grams,
    fgn_epoch,
    sgn_epoch,
    sgn_start,
    step_settings,
)

ROUNDS = 10  # in which the methods take turns
WARM_UP = 2  # rounds before them
EPOCHS = 150  # of a fit, which share the cost of its feature Grams
CG_ITERATIONS = 5
MANY_CLASSES = 512  # from here on FGN shall need no more memory than Adam

N_CLASSES = 10  # of the panels (b) and (c)
ALPHA = np.linspace(0, 1, 101)  # from one competitor to all alike

NOTES = (
    "Panel (a), steps_C: float32, Gaussian features, balanced random labels, static "
    f"batches, no penalty, damping 1, at most {CG_ITERATIONS} steps of CG (tolerance "
    "1e-5, which ends FGN sooner where classes are many). One run a round; in each the "
    "methods take their steps in turn, so that ratios compare what ran at nearly the "
    "same time. --seeds changes nothing.",
    "timed_steps of each method after a fifth of that as warm-up: the paper's 640 up "
    "to 128 classes, then as many fewer as there are more classes, but at least 40.",
    "fgn_cached keeps the Gram matrices of the features; its seconds include those of "
    f"building them (gram_seconds), shared by {EPOCHS} epochs. fgn_uncached builds "
    "them at every step. fgn is the one of the two that the package chooses.",
    "memory_mib is XLA's plan for an epoch: arguments, temporary arrays and results. "
    "The features of all rows count for every method, the kept Grams for fgn_cached.",
    "With two classes the head has one column, as in LogisticRegression.",
    "Panels (b) and (c) go through logits that realise the given probabilities. "
    "deviation: the largest difference between the package and the paper's formulas. "
    "The paper does not give the range of its centred t_j in panel (c); ours is "
    "[-1, 1], and the competitor that rho starts from has t = -1.",
)


class Sizes(NamedTuple):
    """What panel (a) is measured on."""

    n_rows: int
    n_features: int
    batch_size: int
    classes: tuple
    most_steps: int  # timed
    least_steps: int

    def timed_steps(self, n_classes):
        """Fewer where a step takes long."""
        steps = min(self.most_steps, 128 * self.most_steps // n_classes)
        return max(steps, self.least_steps)


PAPER = Sizes(32_768, 2048, 512, tuple(2**k for k in range(1, 13)), 640, 40)
QUICK = Sizes(2048, 128, 64, (2, 16, 128), 200, 200)


# --- (a) seconds per step ------------------------------------------------------------

METHODS = {  # epoch, what it carries at first, solver object, further arguments
    "adam": (adam_epoch, adam_start, solvers.Adam(learning_rate=3e-4), {}),
    "fgn": (
        fgn_epoch,
        Walk,
        solvers.FGN(),
        {"averaged": True, "n_competitors": 0, "cg_iterations": CG_ITERATIONS},
    ),
    "sgn": (
        sgn_epoch,
        sgn_start,
        solvers.SGN(),
        {"cg_iterations": np.int32(CG_ITERATIONS)},
    ),
}


def options_of(solver, batch_size):
    return HeadOptions(
        alpha=np.float32(0),
        damping=1.0,
        rank=1,
        intercept=np.float32(1),
        tol=np.float32(0),
        batch_size=batch_size,
        seed=np.int32(0),
        solver=solver,
    )


class Stepper:
    """A compiled method, its data and how far it has come."""

    def __init__(self, method, n_classes, data, batch_size):
        epoch, start, solver, arguments = METHODS[method]
        n_columns = 1 if n_classes == 2 else n_classes
        net = AffineHead(
            jnp.zeros((data.rows.x.shape[1], n_columns)), jnp.zeros(n_columns)
        )
        self.carry = net, start(net)
        self.data = data
        self.settings = step_settings(options_of(solver, batch_size))
        # Static arguments are compiled in, the others given at each call.
        self.traced = {k: v for k, v in arguments.items() if isinstance(v, np.generic)}
        begin = time.perf_counter()
        lowered = epoch.lower(
            *self.carry, data, self.settings, batch_size=batch_size, **arguments
        )
        self.compiled = lowered.compile()
        self.compile_seconds = time.perf_counter() - begin

    def seconds(self, n_steps):
        """Seconds per step of the next ones; they begin with the first batch."""
        rows = self.data.rows._replace(n_batches=np.int32(n_steps))
        data = self.data._replace(rows=rows)
        begin = time.perf_counter()
        self.carry = self.compiled(*self.carry, data, self.settings, **self.traced)
        jax.block_until_ready(self.carry)
        return (time.perf_counter() - begin) / n_steps

    def memory_mib(self):
        plan = self.compiled.memory_analysis()
        total = (
            plan.argument_size_in_bytes
            + plan.temp_size_in_bytes
            + plan.output_size_in_bytes
            - plan.alias_size_in_bytes
        )
        return total / 2**20


def features(sizes):
    shape = sizes.n_rows, sizes.n_features
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape, np.float32))


def labelled(x, n_classes, sizes):
    """The features with labels, all classes alike."""
    n = sizes.n_rows
    label = np.random.default_rng(1).permutation(n) % n_classes
    return BatchedRows(
        x=x,
        label=label.astype(np.int32),
        weight=np.full(n, 1 / n, np.float32),
        n_rows=np.int32(n),
        n_batches=np.int32(n // sizes.batch_size),
    )


def timed_grams(x, batch_size):
    """The feature Grams, and the seconds of building them."""
    grams, seconds = None, []
    for _ in range(4):  # the first one compiles
        begin = time.perf_counter()
        grams = jax.block_until_ready(feature_grams(x, batch_size))
        seconds.append(time.perf_counter() - begin)
    return grams, median(seconds[1:])


def time_steps(x, grams, gram_seconds, n_classes, sizes):
    """All methods on one number of classes."""
    b = sizes.batch_size
    rows = labelled(x, n_classes, sizes)
    own = ALGORITHMS["fgn"].prepare(rows, options_of(solvers.FGN(), b))
    choice = "fgn_uncached" if own.grams is None else "fgn_cached"
    plain, cached = own._replace(grams=None), own._replace(grams=grams)
    steppers = {
        "adam": Stepper("adam", n_classes, plain, b),
        "fgn_cached": Stepper("fgn", n_classes, cached, b),
        "fgn_uncached": Stepper("fgn", n_classes, plain, b),
        "sgn": Stepper("sgn", n_classes, plain, b),
    }
    n_steps = sizes.timed_steps(n_classes) // ROUNDS
    charge = {"fgn_cached": gram_seconds / (EPOCHS * (sizes.n_rows // b))}
    rounds = [
        {name: s.seconds(n_steps) + charge.get(name, 0) for name, s in steppers.items()}
        for _ in range(WARM_UP + ROUNDS)
    ][WARM_UP:]
    memory = {name: stepper.memory_mib() for name, stepper in steppers.items()}
    answers = {}
    for name, stepper in steppers.items():
        runs = [
            {
                "seconds_per_step": seconds[name],
                "over_adam": seconds[name] / seconds["adam"],
                "over_fgn": seconds[name] / seconds[choice],
                "memory_mib": memory[name],
                "memory_over_adam": memory[name] / memory["adam"],
            }
            for seconds in rounds
        ]
        answers[name] = {
            "settings": {},
            "compile_seconds": stepper.compile_seconds,
            "runs": runs,
            "summary": summary(runs),
        }
    answers["fgn"] = {**answers[choice], "settings": {"same_as": choice}}
    targets = {"target": target(answers, "fgn", "over_adam", "median", 1.15)}
    if n_classes >= MANY_CLASSES:
        targets["target_memory"] = target(
            answers, "fgn", "memory_over_adam", "median", 1.0
        )
    return {
        "description": f"{n_classes} classes, {sizes.n_rows} x {sizes.n_features}, "
        f"batches of {b}",
        "rows": sizes.n_rows,
        "features": sizes.n_features,
        "classes": n_classes,
        "timed_steps": n_steps * ROUNDS,
        "gram_seconds": gram_seconds,
        "methods": answers,
        **targets,
    }


def step_problems(sizes):
    answers = {}
    with backend.scope("float32"):
        x = features(sizes)
        grams, gram_seconds = timed_grams(x, sizes.batch_size)
        for n_classes in sizes.classes:
            begin = time.perf_counter()
            answer = time_steps(x, grams, gram_seconds, n_classes, sizes)
            answers[f"steps_{n_classes}"] = answer
            figures = ", ".join(
                f"{name} {1e3 * a['summary']['seconds_per_step']['median']:.3g} ms"
                for name, a in answer["methods"].items()
            )
            print(
                f"{n_classes:5d} classes: {figures}; FGN over Adam "
                f"{answer['target']['value']:.3g}; "
                f"took {time.perf_counter() - begin:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return answers


# --- (b) and (c): competitors from one to all alike ----------------------------------


def competitors():
    """Dispersions and distributions rho = (1 - alpha) e_1 + alpha / (C - 1)."""
    m = N_CLASSES - 1
    rho = np.tile(ALPHA[:, None] / m, m)
    rho[:, 0] += 1 - ALPHA
    return (1 - 1 / m) * (1 - (1 - ALPHA) ** 2), rho


def split_of(p_true, rho):
    """The package's split, from logits of class 0 against the competitors."""
    p = np.column_stack([np.full(len(rho), p_true), (1 - p_true) * rho])
    with np.errstate(divide="ignore"):  # a competitor of no probability
        logits = jnp.asarray(np.log(p))
    return margins(logits, jnp.zeros(len(rho), jnp.int32))


def compared(ours, paper, at_most):
    """The largest deviation of our figures from the paper's, and its target."""
    deviation = max(np.max(np.abs(ours[name] - paper[name])) for name in paper)
    runs = [{"deviation": deviation}]
    methods = {"package": {"settings": {}, "runs": runs, "summary": summary(runs)}}
    return {
        "methods": methods,
        "target": target(methods, "package", "deviation", "max", at_most),
    }


def retained_part(split):
    """``p_true p_rest a a^T`` of each example, of shape (n, C, C)."""
    a = split.gradient
    return (split.p_true * split.p_rest)[:, None, None] * a[:, :, None] * a[:, None, :]


def dropped_part(split):
    """``p_rest (diag(rho) - rho rho^T)`` of each example, of shape (n, C, C)."""
    rho = split.rho
    eye = jnp.eye(rho.shape[1], dtype=rho.dtype)
    covariance = rho[:, :, None] * eye[None] - rho[:, :, None] * rho[:, None, :]
    return split.p_rest[:, None, None] * covariance


def trace_problem(p_true=0.6):
    """Panel (b)."""
    xi, rho = competitors()
    with backend.scope("float64"):
        split = split_of(p_true, rho)
        kept, dropped = retained_part(split), dropped_part(split)
        matrices = kept, dropped, kept + dropped
        dispersion = 1 - jnp.sum(split.rho**2, axis=1)
        parts = dispersion, *(jnp.trace(a, axis1=1, axis2=2) for a in matrices)
        names = "dispersion", "retained", "dropped", "full"
        ours = dict(zip(names, backend.to_numpy(parts), strict=True))
    p_rest = 1 - p_true
    paper = {
        "dispersion": xi,
        "retained": p_true * p_rest * (2 - xi),
        "dropped": p_rest * xi,
        "full": 2 * p_true * p_rest + p_rest**2 * xi,
    }
    return {
        "description": f"traces of the curvature, p_true {p_true}, {N_CLASSES} classes",
        "rows": len(xi),
        **compared(ours, paper, at_most=1e-14),
        **{name: values.tolist() for name, values in ours.items()},
    }


def logit_slopes(eta=1.25, beta=3.0):
    """Derivatives of the logits in two directions, of shape (C, 2)."""
    t = np.linspace(-1, 1, N_CLASSES - 1)
    slopes = np.column_stack([np.ones(N_CLASSES - 1), beta * t])
    return np.vstack([[-1, eta], slopes])


def decrease_fractions(slopes, split, scales):
    """Share of the full damped decrease that FGN's step reaches, by damping scale."""
    gradient = np.asarray(split.p_rest[:, None] * split.gradient) @ slopes
    fgn, rest = (
        slopes.T @ np.asarray(part(split)) @ slopes
        for part in (retained_part, dropped_part)
    )
    unit = np.trace(fgn[0]) / 2  # of a single competitor

    def fraction(damping):
        shift = damping * np.eye(2)
        full = fgn + rest + shift

        def decrease(curvature):
            d = -np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
            slope, bend = (gradient * d).sum(1), np.einsum("ni,nij,nj->n", d, full, d)
            return -(slope + bend / 2)

        return decrease(fgn + shift) / decrease(full)

    return {scale: fraction(scale * unit) for scale in scales}


def closed_decrease_fractions(slopes, p_true, rho, scales):
    """The same, with the inverses written out.

    FGN's matrix is ``q v v^T`` and the gradient ``p_rest v``, so that its step is a
    multiple of v, and of the full curvature only the variance of ``v . a_j`` under rho
    comes in.
    """
    p_rest = 1 - p_true
    p = np.column_stack([np.full(len(rho), p_true), p_rest * rho])
    v = rho @ slopes[1:] - slopes[0]
    q, square = p_true * p_rest, np.sum(v**2, axis=1)
    along = v @ slopes[1:].T
    centred = along - np.sum(rho * along, axis=1, keepdims=True)
    variance = np.sum(rho * centred**2, axis=1)
    mean = p @ slopes
    second = np.einsum("nc,ci,cj->nij", p, slopes, slopes)
    full = second - mean[:, :, None] * mean[:, None, :]

    def fraction(damping):
        c = p_rest / (damping + q * square)
        by_fgn = (c * p_rest * square - c**2 * p_rest * variance) / 2
        a, b, d = full[:, 0, 0] + damping, full[:, 0, 1], full[:, 1, 1] + damping
        inverse = d * v[:, 0] ** 2 - 2 * b * v[:, 0] * v[:, 1] + a * v[:, 1] ** 2
        by_full = p_rest**2 * inverse / (a * d - b * b) / 2
        return by_fgn / by_full

    return {scale: fraction(scale * q * square[0] / 2) for scale in scales}


def decrease_problem(p_true=0.7, scales=(1.0, 0.1, 0.01)):
    """Panel (c)."""
    xi, rho = competitors()
    slopes = logit_slopes()
    with backend.scope("float64"):
        ours = decrease_fractions(slopes, split_of(p_true, rho), scales)
    paper = closed_decrease_fractions(slopes, p_true, rho, scales)
    return {
        "description": f"decrease of the full damped model by FGN's step, p_true "
        f"{p_true}, {N_CLASSES} classes, two parameters",
        "rows": len(xi),
        **compared(ours, paper, at_most=1e-12),
        "dispersion": xi.tolist(),
        "fraction": {f"{s:g}": values.tolist() for s, values in ours.items()},
    }


def run(args):
    answers = {"traces": trace_problem(), "decrease": decrease_problem()}
    answers |= step_problems(QUICK if args.quick else PAPER)
    return {"problems": answers, "notes": NOTES}
