"""jinns: Adam, then SSBroyden; or its natural gradient."""

from functools import partial
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import jinns
import numpy as np
import optax
from jax.experimental import io_callback
from jinns.data import PDEStatioBatch
from jinns.data._AbstractDataGenerator import AbstractDataGenerator
from jinns.loss import (
    BoundaryConditionAbstract,
    LossPDEStatio,
    LossWeightsPDEStatio,
    PDEStatio,
)
from jinns.solver import GetJinnsVariableName
from jinns.validation import AbstractValidationModule

from benchmarks._peers import _common

ADAM_SHARE = 0.2  # of the seconds
RATE = 1e-3
MOST = 200_000  # iterations


class FixedPoints(AbstractDataGenerator):
    """Hands out the same points for good."""

    interior: jax.Array
    boundary: jax.Array
    rar_parameters: None = None

    def get_batch(self):
        border = self.boundary[:, :, None]  # one facet: all four sides together
        batch = PDEStatioBatch(domain_batch=self.interior, border_batch=border)
        return self, batch


class NavierStokes(PDEStatio):
    """Balance of momentum and divergence at a point."""

    def equation(self, x, u, params):
        def flow(x):
            return u(x, params)

        value, slope = flow(x), jax.jacfwd(flow)(x)
        second = jax.jacfwd(jax.jacfwd(flow))(x)
        friction = _common.VISCOSITY * jnp.trace(second, axis1=1, axis2=2)
        momentum = slope[:2] @ value[:2] + slope[2] - friction[:2]
        return jnp.append(momentum, slope[0, 0] + slope[1, 1])


class GivenVelocity(BoundaryConditionAbstract):
    """The exact velocity on the boundary."""

    def equation_u(self, inputs, u, params):
        return (u(inputs[:, 0], params)[:2],)

    def equation_f(self, inputs, params, gridify=False):
        return (_common.exact_velocity(inputs[:, 0], jnp),)


class Clock(AbstractValidationModule):
    """Hands the parameters out of the compiled loop and ends it."""

    record: object = eqx.field(static=True, kw_only=True)
    call_every: int = eqx.field(static=True, kw_only=True, default=1)

    def __call__(self, params):
        result = jax.ShapeDtypeStruct((), np.bool_)
        stop = io_callback(self.record, result, params)
        return self, stop, jnp.asarray(0.0), False


class Recorder:
    """Keeps parameters with their times; counts from its first call on.

    It computes nothing: inside of a compiled loop that could wait for itself.
    """

    def __init__(self, curve, until):
        self.curve, self.until = curve, until
        self.times, self.params = [], []

    def __call__(self, params):
        if not self.times:  # all is compiled
            self.curve.start()
        now, wanted = self.curve.seconds, _common.INTERVAL * self.curve.task.seconds
        last = self.times[-1] if self.times else -np.inf
        if now - last >= wanted or now >= self.until:
            self.times.append(now)
            self.params.append(jax.tree.map(np.asarray, params))
        return np.bool_(now >= self.until)


def callback_value(params, loss, batch):
    return loss(params, batch)[0]


def callback_gradient(params, loss, batch):
    return jax.grad(lambda params: loss(params, batch)[0])(params)


BROYDEN_WORDS = {  # what its line search is given
    "value": GetJinnsVariableName("train_loss_value"),
    "grad_pt": GetJinnsVariableName("grads"),
    "value_fn": callback_value,
    "grad_fn": callback_gradient,
    "loss": GetJinnsVariableName("loss"),
    "batch": GetJinnsVariableName("batch"),
}


def network(task):
    """The network as jinns wants it, and its first parameters."""
    layers = []
    for w, v in pairwise(task.sizes):
        layers += [(eqx.nn.Linear, w, v), (jnp.tanh,)]
    return jinns.nn.PINN_MLP.create(
        key=jax.random.PRNGKey(task.seed),
        eqx_list=tuple(layers[:-1]),
        eq_type="PDEStatio",
        input_transform=lambda x, params: _common.unit(x),
    )


def fit(task, curve):
    net, first = network(task)
    params = jinns.parameters.Params(nn_params=first, eq_params={})
    loss = LossPDEStatio(
        u=net,
        dynamic_loss=NavierStokes(),
        boundary_condition=GivenVelocity(),
        loss_weights=LossWeightsPDEStatio(dyn_loss=1.0, boundary_loss=1.0),
        params=params,
    )
    data = FixedPoints(jnp.asarray(task.interior), jnp.asarray(task.boundary))
    half_loss = jax.jit(lambda params: loss(params, data.get_batch()[1])[0] / 2)
    velocity = jax.jit(
        lambda params, x: jax.vmap(net, in_axes=(0, None))(jnp.asarray(x), params)
    )

    def stage(params, optimizer, until, **words):
        recorder = Recorder(curve, until)
        params = jinns.solve(
            n_iter=MOST,
            init_params=params,
            data=data,
            loss=loss,
            optimizer=optimizer,
            validation=Clock(record=recorder),
            verbose=False,
            **words,
        )[0]
        curve.stop()
        for seconds, then in zip(recorder.times, recorder.params, strict=True):
            curve.put(seconds, half_loss(then), partial(velocity, then))
        return params

    if task.method == "ngd":
        search = optax.scale_by_backtracking_linesearch(max_backtracking_steps=15)
        stage(params, jinns.optimizers.vanilla_ngd(linesearch=search), task.seconds)
        return {"method": "vanilla_ngd"}
    params = stage(params, optax.adam(RATE), ADAM_SHARE * task.seconds)
    broyden = jinns.optimizers.scale_by_SSBroyden_family()
    words = {"extra_optax_args_and_kwargs": BROYDEN_WORDS}
    stage(params, broyden, task.seconds, **words)
    return {"method": task.method, "adam_share": ADAM_SHARE, "adam_rate": RATE}


if __name__ == "__main__":
    _common.main("jinns", fit)
