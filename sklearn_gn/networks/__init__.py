"""Networks as pure functions of a NamedTuple of parameters."""
