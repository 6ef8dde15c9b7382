"""Public signatures are annotated; ``make lint`` checks that the annotations fit."""

import inspect

import pytest

from tests._discovery import public_functions, public_objects

PUBLIC = public_objects()


@pytest.mark.parametrize("name", PUBLIC)
def test_public_signatures_are_annotated(name):
    for method, function in public_functions(PUBLIC[name]).items():
        signature = inspect.signature(function)
        bare = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.annotation is parameter.empty
            and parameter.name not in ("self", "cls")
        ]
        assert not bare, method
        if method != "__init__":  # that of a dataclass is written for us
            assert signature.return_annotation is not signature.empty, method
