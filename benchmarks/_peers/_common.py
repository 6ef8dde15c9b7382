"""What the scripts of the peers share: the task, the flow and the curve. Only numpy."""

import json
import math
import sys
import time
from importlib.metadata import version

import numpy as np

LOW, HIGH = np.array([-0.5, -0.5]), np.array([1.0, 1.5])
REYNOLDS = 40.0
VISCOSITY = 1 / REYNOLDS
INTERVAL = 0.01  # between two points of a curve, as a share of the seconds


class Task:
    """The points of a run, its network, seed and seconds, and the method."""

    def __init__(self, text):
        task = json.loads(text)
        self.method = task["method"]
        self.hidden = tuple(task["hidden"])
        self.seed = task["seed"]
        self.seconds = task["seconds"]
        with np.load(task["points"]) as points:
            self.interior = points["interior"]  # (N, 2)
            self.boundary = points["boundary"]  # (M, 2)
            self.test = points["test"]  # (K, 2)
            self.velocity = points["velocity"]  # (K, 2)  the exact one there

    @property
    def sizes(self):
        """Widths of the network, inputs and outputs included."""
        return 2, *self.hidden, 3


def unit(x):
    """Points of the domain in [-1, 1]^2, where the networks see them."""
    return 2 * (x - LOW) / (HIGH - LOW) - 1


def exact_velocity(x, xp=np):
    """The flow at points (..., 2), by numpy or a module like it."""
    half = REYNOLDS / 2
    rate = half - np.sqrt(half**2 + 4 * np.pi**2)
    growth, angle = xp.exp(rate * x[..., 0]), 2 * np.pi * x[..., 1]
    u = 1 - growth * xp.cos(angle)
    v = rate / (2 * np.pi) * growth * xp.sin(angle)
    return xp.stack([u, v], axis=-1)


class Curve:
    """Seconds, losses and errors of a fit; neither compilation nor scoring counts.

    The loss is half the sum of the mean squares of all residuals, as PINNSolver has it.
    """

    def __init__(self, task):
        self.task, self.points = task, []
        self._used, self._begun = 0.0, None

    def start(self):
        """Count from here on."""
        self._begun = time.perf_counter()

    def stop(self):
        """Count no longer, until started again."""
        self._used, self._begun = self.seconds, None

    @property
    def seconds(self):
        """Seconds that count."""
        running = 0.0 if self._begun is None else time.perf_counter() - self._begun
        return self._used + running

    @property
    def done(self):
        """Whether the time is up."""
        return self.seconds >= self.task.seconds

    def due(self):
        """Whether the last point is long enough ago."""
        last = self.points[-1]["seconds"] if self.points else -math.inf
        return self.seconds - last >= INTERVAL * self.task.seconds

    def add(self, loss, velocity):
        """A point, while the clock stands still.

        ``loss`` is called without arguments; ``velocity`` maps points (K, 2) to as many
        rows that begin with the velocity.
        """
        self.stop()
        self.put(self.seconds, loss(), velocity)
        self.start()

    def put(self, seconds, loss, velocity):
        """A point of some time."""
        found = np.asarray(velocity(self.task.test))[:, :2]
        error = np.linalg.norm(found - self.task.velocity)
        error /= np.linalg.norm(self.task.velocity)
        point = {"seconds": seconds, "loss": float(loss), "error": float(error)}
        self.points.append(point)


def main(package, fit):
    """Run a task and print the curve; ``fit(task, curve)`` returns its settings."""
    task = Task(sys.argv[1])
    curve = Curve(task)
    # Some libraries print as they go: standard output is for the answer alone.
    answer, sys.stdout = sys.stdout, sys.stderr
    settings = fit(task, curve)
    result = {"points": curve.points, "settings": settings, "version": version(package)}
    print(json.dumps(result), file=answer)
