"""The figures of the house: counted from source, and kept from rising."""

import importlib.util
import json
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "house.py"

ROOM = '''"""A module
of two lines of docstring."""

from typing import NamedTuple

FEW, MANY = 3, 4 * 5
NAME = "no number"


class State(NamedTuple):
    """Three fields."""

    first: int
    second: int
    third: int


def tiny():
    # A comment is no line of code.
    return FEW


def factorised(matrix):
    """Call a factorisation."""
    rows = tiny()
    size = rows + MANY
    factor = cholesky(matrix)
    return factor, size
'''


@pytest.fixture
def house():
    spec = importlib.util.spec_from_file_location("house", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(house, tmp_path, monkeypatch):
    """A small package in a folder that the tool takes for its own checkout."""
    package, tests = tmp_path / "sklearn_gn" / "core", tmp_path / "tests"
    package.mkdir(parents=True)
    tests.mkdir()
    (package / "room.py").write_text(ROOM)
    (tests / "test_room.py").write_text(
        "from sklearn_gn import Model\n"
        "from sklearn_gn.core.room import tiny\n\n\n"
        "def test_internal():\n    assert tiny()\n\n\n"
        "def test_public():\n    assert Model()\n"
    )
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "BASELINE", tmp_path / "house.json")
    return tmp_path


def test_figures_of_a_small_package(house, checkout):
    figures = house.of_the_package(checkout / "sklearn_gn")
    expected = {
        "lines": 28,
        "lines_core": 28,
        "functions": 2,
        "tiny_functions": 1,
        "single_use": 1,
        "thresholds": 2,
        "lapack_files": 1,
        "small_modules": 1,
        "state_fields": 3,
        "code": 14,
    }
    assert {name: figures[name] for name in expected} == expected
    assert house.internal_tests(checkout / "tests") == 0.5


def test_a_figure_above_its_goal_must_not_rise(house, checkout, capsys):
    assert house.main(["--write"]) == 0
    assert house.main(["--check"]) == 0
    (checkout / "sklearn_gn" / "core" / "more.py").write_text("x = 'a line'\n")
    assert house.main(["--check"]) == 1  # the room has to shrink to nothing
    assert "lines_core rose from 28 to 29" in capsys.readouterr().out
    assert house.main([]) == 0


def test_a_figure_below_its_goal_may_rise(house, checkout):
    house.main(["--write"])
    baseline = json.loads(house.BASELINE.read_text())
    (checkout / "sklearn_gn" / "more.py").write_text("A_NUMBER = 1\n")
    assert (
        house.of_the_package(checkout / "sklearn_gn")["thresholds"]
        > (baseline["thresholds"])
    )
    assert house.main(["--check"]) == 0
