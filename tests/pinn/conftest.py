import pytest

from sklearn_gn.pinn import iteration


@pytest.fixture(autouse=True, scope="module")
def _few_fresh_points():
    """Of the small fits here, a thousand fresh points would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iteration, "LEAST_POINTS", (50, 20))
        yield
