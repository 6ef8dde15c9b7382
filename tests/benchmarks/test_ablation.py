"""The ablation benchmark, with answers that are made up instead of fits."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import ablation

WAVES, UNITS = "pinn.waves", "pinn.units"
ROWS = {  # figures as they are, with the mechanisms that were about to act
    "equations/wave": {"error": 1e-4, "first_seconds": 2.0, "asked": [UNITS, WAVES]},
    "equations/heat": {"error": 1e-3, "first_seconds": 3.0, "asked": [UNITS]},
    "equations/unsolved": None,
}
WITHOUT = {  # the same without a mechanism
    ("equations/wave", WAVES): {"error": 1e-2, "first_seconds": 1.0, "asked": []},
    ("equations/wave", UNITS): {"error": 1.1e-4, "first_seconds": 2.0, "asked": []},
    ("equations/heat", UNITS): None,
}


@pytest.fixture
def asked_for(monkeypatch):
    """The rows and switches that workers are asked for."""
    found = []

    def ask(row, folder, core, data, switch, seconds):
        found.append((row, switch))
        figures = ROWS[row] if switch is None else WITHOUT[row, switch]
        return SimpleNamespace(figures=figures, reason="" if figures else "an error")

    monkeypatch.setattr(ablation, "ask", ask)
    names = [row.split("/")[1] for row in ROWS]
    monkeypatch.setattr(ablation, "rows_of", lambda room, data: names)
    return found


def arguments(path, only=(WAVES, UNITS), **words):
    def write(answer):
        path.write_text(json.dumps(answer))
        return answer

    given = {"only": list(only), "quick": False, "out": path, "minutes": None}
    return SimpleNamespace(**{**given, **words}, data=None, write=write)


def test_rows_are_run_without_the_mechanisms_that_were_about_to_act(
    asked_for, tmp_path
):
    result = ablation.run(arguments(tmp_path / "result.json"))
    assert set(asked_for[:3]) == {(row, None) for row in ROWS}
    assert set(asked_for[3:]) == set(WITHOUT)
    problems = result["problems"]
    assert list(problems)[-1] == ablation.OVERVIEW
    (run,) = problems[WAVES]["methods"]["equations/wave"]["runs"]
    assert run == {
        "error_on": 1e-4,
        "error_off": 1e-2,
        "first_seconds_on": 2.0,
        "first_seconds_off": 1.0,
    }


def test_the_overview_counts_rows_that_got_worse(asked_for, tmp_path):
    problems = ablation.run(arguments(tmp_path / "result.json"))["problems"]
    lines = problems[ablation.OVERVIEW]["methods"]
    (waves,), (units,) = (lines[name]["runs"] for name in (WAVES, UNITS))
    assert (waves["acting"], waves["worse"], waves["better"]) == (1, 1, 0)
    assert waves["worst"] == pytest.approx(-np.log(100) / np.log(1.3), rel=1e-9)
    assert waves["worst"] == waves["median_worse"] == waves["best"]
    assert (waves["seconds_on"], waves["seconds_off"]) == (2.0, 1.0)
    # A row without an answer is worse, and has no seconds to compare.
    assert (units["acting"], units["worse"], units["better"]) == (2, 1, 0)
    assert (units["worst"], units["worst_row"]) == (-np.inf, "equations/heat")
    assert (units["seconds_on"], units["seconds_off"]) == (2.0, 2.0)


def test_a_run_goes_on_where_the_file_ends(asked_for, tmp_path):
    path = tmp_path / "result.json"
    ablation.run(arguments(path, minutes=0))
    assert asked_for == []  # no row begins after the time
    ablation.run(arguments(path, only=[WAVES]))
    before = len(asked_for)
    again = ablation.run(arguments(path))
    assert set(asked_for[before:]) == {pair for pair in WITHOUT if pair[1] == UNITS}
    assert {WAVES, UNITS} <= set(again["problems"])


def test_only_takes_names_of_switches(tmp_path):
    with pytest.raises(SystemExit, match=r"pinn\.magic"):
        ablation.run(arguments(tmp_path / "result.json", only=["pinn.magic"]))
