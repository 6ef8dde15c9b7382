"""Switches of the automatic mechanisms, for ``python -m benchmarks ablation``.

That benchmark turns one mechanism off and looks at what the gates lose. No parameter
leads here, and a user has no reason to. A mechanism asks where it is about to act; with
its switch off the fit goes on as if there were nothing to do. Compiled functions do not
ask: they would keep the first answer.
"""

off: set[str] = set()  # names of the mechanisms that must not act
asked: set[str] = set()  # of those that were about to act in this process


def on(name: str) -> bool:
    """Record that a mechanism is about to act, and return whether it may."""
    asked.add(name)
    return name not in off


def kept(name: str, found: tuple) -> tuple:
    """Return what a mechanism has found, or nothing if it is switched off."""
    return found if found and on(name) else ()
