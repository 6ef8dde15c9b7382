"""The Newton direction of the softmax head, in whitened features.

Conjugate gradients in single precision, preconditioned by one block a class; then the
least loss along the direction, roughly.
"""

from functools import partial
from typing import Any, NamedTuple

from sklearn_gn.arrays.libraries import in_either_library, library_of, namespace
from sklearn_gn.arrays.parts import total
from sklearn_gn.arrays.trees import add, dot
from sklearn_gn.optim.multinomial import (
    all_classes,
    hessian_product,
    newton_direction,
)
from sklearn_gn.softmax_head.blocks import curvatures, in_whitened, single
from sklearn_gn.softmax_head.head import (
    AffineHead,
    gradient_norms,
    over_blocks,
    values,
    values_transposed,
)
from sklearn_gn.softmax_head.whitening import (
    counted_weights,
    from_whitened,
    gradient_to_whitened,
    to_whitened,
)

_FORCING = 0.1  # relative residual of the Newton system
_FLAT = 0.3  # part of the slope that may be left where the line search ends
_LINE_ITERATIONS = 8
_ALIKE = 1e-4  # curvature left of a direction, that is made conjugate to another


@in_either_library
def whitened_newton_direction(net, gradient, data, inverses, settings, last=None):
    """Inexact Newton step in single precision, and where to try it first.

    Where ``last``, the step before, is given, the direction is that of the least
    undamped model over both: damping alone would make it a gradient step, along which
    a minimum is approached slowly.

    Returns
    -------
    direction : AffineHead
    trial : scalar
        Step length near the least loss along the direction.
    slope : scalar
    iterations : scalar
    """
    rows, x = data.rows, data.x
    head, weight, penalty, shift, variance, damping, intercept = single(
        (
            to_whitened(net, data.center, data.dual),
            counted_weights(rows),
            in_whitened(settings.alpha, data.squares),
            in_whitened(settings.alpha + settings.damping, data.squares),
            data.variance,
            settings.damping,
            settings.intercept,
        )
    )
    library, n_classes = library_of(x), max(net.bias.shape[0], 2)
    logits = all_classes(values(head, x))
    xp, p = library.xp, library.softmax(logits)
    _, curvature = curvatures(p, weight)

    def product(v):
        def body(carry, x, p, weight):
            image = hessian_product(
                partial(values, x=x), partial(values_transposed, x), p, weight, v
            )
            return library.tree_map(xp.add, carry, image)

        start = library.tree_map(xp.zeros_like, v)
        image = total(over_blocks(body, start, (x, p, weight), n_classes))
        return AffineHead(
            image.weight + shift * v.weight, intercept * (image.bias + damping * v.bias)
        )

    system = _System(curvature, variance, shift, damping, intercept)
    whitened = gradient_to_whitened(gradient, data.center, data.basis)
    size, _ = gradient_norms(whitened)
    unit_step, iterations = newton_direction(
        product,
        library.tree_map(lambda g: (g / size).astype(x.dtype), whitened),
        precondition=_preconditioner(system, inverses, len(net.bias)),
        forcing=_FORCING,
        max_iter=settings.cg_iterations,
    )
    if last is not None:
        last = single(to_whitened(last, data.center, data.dual))
        moving = in_whitened(settings.damping, data.squares).astype(x.dtype)

        def undamped(v):
            image = product(v)
            return AffineHead(
                image.weight - moving * v.weight,
                image.bias - intercept * damping * v.bias,
            )

        right = library.tree_map(lambda g: (-g / size).astype(x.dtype), whitened)
        unit_step = least_of_both(undamped, right, unit_step, last)
    direction = library.tree_map(lambda d: d.astype(size.dtype) * size, unit_step)
    slope = sum(xp.sum(d * g) for d, g in zip(direction, whitened, strict=True))
    along = single(direction)
    trial = _line_minimum(
        logits,
        p,
        all_classes(values(along, x)),
        rows.label,
        weight,
        slope.astype(x.dtype),
        xp.sum(penalty * along.weight**2),
    )
    direction = from_whitened(direction, data.center, data.basis)
    return direction, trial.astype(size.dtype), slope, iterations


class _System(NamedTuple):
    """What the preconditioners take of a Newton system, in single precision."""

    curvature: Any  # mean of each class
    variance: Any  # of the whitened features
    shift: Any  # of the weights: penalty and damping
    damping: Any  # of the biases
    intercept: Any


def _preconditioner(system, inverses, n_biases):
    """Return the preconditioner of conjugate gradients, one block a class.

    Parameters
    ----------
    system : _System
    inverses : array or None
        Inverses of the blocks; if None, these are whitened features times curvatures.
    n_biases : int
        One if there are two classes.
    """
    curvature, variance, shift, damping, intercept = system
    xp = namespace(curvature)

    def by_kronecker(r):
        # Whitened features times the mean curvature of each class.
        scale = variance * curvature[None, :] + shift
        return AffineHead(r.weight / scale, intercept * r.bias / (curvature + damping))

    def by_blocks(r):
        stacked = xp.concatenate([r.weight, r.bias[None, :]]).T
        solved = xp.matmul(inverses, stacked[:, :, None])[:, :, 0].T
        return AffineHead(solved[:-1], solved[-1])

    by_class = by_kronecker if inverses is None else by_blocks
    if n_biases == 1:
        return by_class

    def differences(head):
        return AffineHead(*(a - xp.mean(a, axis=-1, keepdims=True) for a in head))

    def precondition(r):
        # What moves all classes alike changes no probability. The blocks do not know
        # this, and would lead CG there.
        solved = differences(by_class(differences(r)))
        common = xp.mean(r.weight, axis=1, keepdims=True)
        common = common / (shift + variance * xp.mean(curvature))
        return solved._replace(weight=solved.weight + common)

    return precondition


def least_of_both(product, right, step, last):
    """Minimum of the quadratic model over two directions; ``step`` if it has none.

    Parameters
    ----------
    product : callable
        Product with the Hessian.
    right : AffineHead
        Minus the gradient.
    step, last : AffineHead
    """
    xp = namespace(right)

    def length(direction, image, least):
        bend = dot(direction, image)
        usable = bend > least
        along = dot(direction, right) / xp.where(usable, bend, 1)
        return xp.where(usable, along, 0)

    image, image_of_last = product(step), product(last)
    bend, bend_of_last = dot(step, image), dot(last, image_of_last)
    share = -dot(step, image_of_last) / xp.where(bend > 0, bend, 1)
    # What rounding leaves of a last step along this one says nothing.
    least = _ALIKE * bend_of_last
    other = add(last, share, step)
    further = length(other, add(image_of_last, share, image), least)
    own = length(step, image, 0)
    return add(add(step, xp.where(own > 0, own - 1, 0), step), further, other)


def _line_minimum(here, p, change, label, weight, slope, penalty_curvature):
    """Rough zero of the derivative along a direction, by Newton's method in a bracket.

    The logits ``here + t change`` need no product with the features. The loss is
    convex, so the zero is unique. ``p`` are the probabilities at zero, ``slope`` is the
    derivative there, ``penalty_curvature`` the second derivative of the penalty.
    """
    library = library_of(here)
    xp, squares = library.xp, change**2
    at_true = library.at_label(change, label)

    def derivatives(t):
        p = library.softmax(here + t * change)
        first = library.row_products(p, change)
        second = library.row_products(p, squares) - first**2
        return total((weight @ (first - at_true), weight @ second))

    # What the penalty adds at zero, from the exact slope.
    at_zero = total(weight @ (library.row_products(p, change) - at_true))
    correction = slope - at_zero

    def improve(carry):
        t, lower, upper, _, count = carry
        first, second = derivatives(t)
        first = first + correction + t * penalty_curvature
        second = second + penalty_curvature
        lower = xp.where(first < 0, t, lower)
        upper = xp.where(first < 0, upper, t)
        newton = t - first / xp.maximum(second, xp.finfo(t.dtype).tiny)
        inside = (newton > lower) & (newton < xp.minimum(upper, 8 * t))
        middle = xp.where(xp.isinf(upper), 4 * t, (lower + upper) / 2)
        good = xp.abs(first) <= _FLAT * xp.abs(slope)
        new = xp.where(good, t, xp.where(inside, newton, middle))
        return new, lower, upper, good, count + 1

    start = xp.ones_like(slope)
    t, *_ = library.while_loop(
        lambda c: ~c[3] & (c[4] < _LINE_ITERATIONS),
        improve,
        (start, 0 * start, xp.inf * start, xp.bool_(False), xp.int32(0)),
    )
    return t
