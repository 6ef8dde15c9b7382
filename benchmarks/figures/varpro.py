"""Figures of networks with variable projection, from the experiments ``varpro_*``."""

import numpy as np
from matplotlib.lines import Line2D

from benchmarks.figures._common import numbers, part, styles

X_LABELS = {"work_units": "Work units", "seconds": "Time (s)"}


def work_curves(ax, result, problem, *, x, quantity, yscale):
    """Training (solid) and validation (dashed) figures over work units or seconds.

    Methods that count no work are left out where ``x`` is "work_units". Marks on the
    curves are the last iterations before a refinement of the network.
    """
    curves = part(result["problems"], problem, "problem").get("curves", {})
    curves = {name: curve for name, curve in curves.items() if x in curve}
    if not curves:
        raise ValueError(f"The problem {problem!r} has no curves over {x!r}.")
    handles, dashed, marks = [], False, False
    for style, curve in zip(styles(curves), curves.values(), strict=True):
        position, training = numbers(curve[x]), numbers(curve["train"])
        handles += ax.plot(position, training, **style)
        color = style["color"]
        validation = numbers(curve.get("validation", []))
        if np.isfinite(validation).any():
            ax.plot(position, validation, color=color, ls="--")
            dashed = True
        ends = np.flatnonzero(np.diff(curve.get("level", ())))
        if len(ends):
            mark = {"color": color, "marker": "|", "ms": 16, "mew": 2, "ls": "none"}
            ax.plot(position[ends], training[ends], **mark)
            marks = True
    black = {"color": "black", "lw": 1}
    if dashed:
        handles.append(Line2D([], [], label="Training", **black))
        handles.append(Line2D([], [], label="Validation", ls="--", **black))
    if marks:
        mark = {"marker": "|", "ms": 10, "ls": "none"}
        handles.append(Line2D([], [], label="Refinement", **mark, **black))
    ax.set_yscale(yscale, **({"nonpositive": "mask"} if yscale == "log" else {}))
    ax.set(xlabel=X_LABELS[x], ylabel=quantity)
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1)}
    ax.legend(handles=handles, ncols=4, fontsize="small", **above)
