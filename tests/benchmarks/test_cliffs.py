"""Cliffs: every rule on both sides of its bound, the scans, and the smallest one."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import sklearn_gn
from benchmarks import __main__ as runner
from benchmarks import _cliffs, cliffs

EQUAL = np.array([-1.0, 1.0, -1.0, 1.0])[:, None]  # of mean zero and standard error


def draws(*means, noise=0.0):
    """Four draws with these means; noise makes every point differ by the same."""
    return np.array(means) + noise * EQUAL


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        (draws(0.8, 0.9, 0.95), []),
        (draws(0.8, 0.9, 0.8971), []),
        (draws(0.8, 0.9, 0.8969), [(1, 2)]),
        # Both points vary by the same from draw to draw: pairs do not.
        (draws(0.9, 0.85, noise=0.3), [(0, 1)]),
        (np.hstack([draws(0.9), draws(0.85, noise=0.042)]), [(0, 1)]),
        (np.hstack([draws(0.9), draws(0.85, noise=0.044)]), []),
    ],
)
def test_more_data_are_not_worse(scores, found):
    assert cliffs.worse_with_more(scores) == found


@pytest.mark.parametrize(
    ("seconds", "steps", "found"),
    [
        ([1.0, 2.9, 8.6], 1.0, []),
        ([1.0, 3.1, 3.1], 1.0, [(0, 1)]),
        ([3.1, 1.0, 1.0], 1.0, [(0, 1)]),
        ([1.0, 5.9], 2.0, []),
        ([1.0, 6.1], 2.0, [(0, 1)]),
        ([6.1, 1.0], 2.0, [(0, 1)]),
        ([0.001, 0.149], 1.0, []),
        ([0.001, 0.151], 1.0, [(0, 1)]),
    ],
)
def test_neighbours_take_similar_times(seconds, steps, found):
    assert cliffs.slow_neighbours(draws(*seconds), steps) == found


def test_one_slow_draw_is_not_a_slow_point():
    seconds = np.ones((5, 2))
    seconds[0, 1] = 100.0
    assert cliffs.slow_neighbours(seconds) == []
    seconds[:3, 1] = 100.0
    assert cliffs.slow_neighbours(seconds) == [(0, 1)]


def test_a_model_is_as_good_as_none():
    scores, baseline = draws(0.0, -0.019, -0.021), draws(0.0, 0.0, 0.0)
    assert cliffs.below_baseline(scores, baseline) == [(2,)]


def test_a_fit_that_misses_a_reference_has_to_say_so():
    reference = draws(0.99, 0.99, np.nan)
    scores = draws(0.941, 0.939, 0.1)
    silent, admits = np.zeros((4, 3)), np.ones((4, 3))
    assert cliffs.unseen(scores, reference, silent) == [(1,)]
    assert cliffs.unseen(scores, reference, admits) == []
    admits[0] = 0.0
    assert cliffs.unseen(scores, reference, admits) == []
    admits[1] = 0.0  # half of the draws
    assert cliffs.unseen(scores, reference, admits) == [(1,)]


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        (draws(1.0, 0.9, 0.8, 0.7), []),
        (draws(0.0, 0.5, 0.75, 0.875), []),
        (draws(0.0, 0.0, 0.19, 0.2), []),
        (draws(0.0, 0.0, 0.21, 0.22), [(0, 1, 2)]),
        (draws(0.8, 0.8, 0.59, 0.59), [(1, 2, 3)]),
        (draws(0.8, 0.69, 0.8), [(0, 1, 2)]),
        (np.hstack([draws(0.8), draws(0.6, noise=0.2), draws(0.8)]), []),
    ],
)
def test_a_step_of_a_fifth_is_a_cliff(scores, found):
    assert cliffs.dips(scores, np.arange(scores.shape[1])) == found


def test_the_line_through_neighbours_goes_by_their_distances():
    scores = draws(0.0, 0.15, 1.0)
    assert cliffs.dips(scores, np.array([0.0, 1.0, 5.0])) == []
    assert cliffs.dips(scores, np.array([0.0, 2.5, 5.0])) == [(0, 1, 2)]


def test_random_states_agree():
    assert cliffs.spread(np.array([[0.9, 0.9099, 0.905]])) == []
    assert cliffs.spread(np.array([[0.9, 0.9101, 0.905]])) == [(0, 1)]


def scan(**words):
    return _cliffs.Scan("", (), None, 4, 1.0, **words)


def rules(breaks):
    return [broken["rule"] for broken in breaks]


def test_log_loss_is_better_when_low():
    figures = {
        "log_loss": draws(1.0, 0.9, 0.95),
        "log_loss_baseline": draws(1.1, 1.1, 0.9),
        "seconds": draws(1.0, 1.0, 1.0),
    }
    found = cliffs.judge(scan(more=True), (10, 20, 40), figures)
    assert rules(found) == [1, 3]
    assert [broken["points"] for broken in found] == [[20, 40], [40]]
    assert found[0]["log_loss"] == pytest.approx([0.9, 0.95])
    assert rules(cliffs.judge(scan(), (10, 20, 40), figures)) == [3]


def test_a_step_that_the_reference_takes_too_is_none():
    step = draws(1.0, 1.0, 0.1, 0.1)
    figures = {"share": step, "seconds": draws(1.0, 1.0, 1.0, 1.0)}
    points = (1, 2, 3, 4)
    assert rules(cliffs.judge(scan(), points, figures)) == [5]
    assert cliffs.judge(scan(), points, {**figures, "share_reference": step}) == []
    # Nor is one that only the reference takes.
    none = {**figures, "share": draws(0.0, 0.0, 0.0, 0.0), "share_reference": 1 - step}
    assert cliffs.judge(scan(), points, none) == []
    found = cliffs.judge(scan(), points, {**figures, "share_reference": 0 * step + 1})
    assert rules(found) == [5]


def test_the_work_of_some_scans_grows_with_their_values():
    figures = {"share": draws(1.0, 1.0), "seconds": draws(1.0, 5.0)}
    assert rules(cliffs.judge(scan(), (10, 20), figures)) == [2]
    assert cliffs.judge(scan(grows=True), (10, 20), figures) == []


def test_a_given_penalty_takes_no_longer_than_its_choice():
    points = ("auto", 0.1, 1.0, 10.0)
    figures = {"r2": draws(0.0, 0.9, 0.9, 0.9), "seconds": draws(1.0, 2.0, 5.0, 9.0)}
    found = cliffs.judge(scan(), points, figures)
    assert [broken["points"] for broken in found] == [["auto", 1.0], ["auto", 10.0]]
    figures["seconds"] = draws(9.0, 1.0, 2.9, 8.8)
    found = cliffs.judge(scan(), points, figures)
    assert [broken["points"] for broken in found] == [[1.0, 10.0]]


def test_random_states_have_no_neighbours():
    figures = {
        "r2": np.array([[0.9, 0.5, 0.9]]),
        "seconds": np.array([[1.0, 9.0, 1.0]]),
    }
    assert rules(cliffs.judge(scan(is_spread=True), (0, 1, 2), figures)) == [6]


def test_scans_are_in_small_steps_and_fit_into_the_time():
    known = _cliffs.scans()
    for name, one in known.items():
        assert hasattr(sklearn_gn, name.split(".")[1])
        numbers = np.array([p for p in one.points if p != "auto"], dtype=float)
        assert (np.diff(numbers) > 0).all()
        if not (one.is_spread or one.points[0] == "auto"):
            positive = numbers[numbers > 0]
            assert (positive[1:] / positive[:-1]).max() < 2.1
    assert sum(one.minutes for one in known.values()) <= 2 * cliffs.MINUTES


def test_points_of_a_draw_are_nested():
    np.testing.assert_array_equal(
        _cliffs.normal(1, 0, 9, 3)[:5], _cliffs.normal(1, 0, 5, 3)
    )
    assert np.corrcoef(_cliffs.normal(1, 0, 99), _cliffs.normal(1, 1, 99))[0, 1] < 0.5


def test_the_smallest_scan_is_written_and_not_run_again(tmp_path, monkeypatch, capsys):
    out = tmp_path / "cliffs.json"
    (name,) = cliffs.QUICK
    # Three points, in this process: one of its own would import all again.
    monkeypatch.setattr(cliffs, "worker", _cliffs.figures)
    runner.main(["cliffs", "--quick", "--out", str(out)])
    result = json.loads(out.read_text())
    method = result["problems"]["last_rows"]["methods"]["SegmentedRegressor"]
    assert [run["last_rows"] for run in method["runs"]] == [3, 4, 5]
    assert result["breaks"]["total"] == len(method["breaks"])
    assert f"{len(method['breaks'])} breaks in 1 scans" in capsys.readouterr().out
    monkeypatch.setattr(cliffs, "worker", None)  # nothing is left for it
    runner.main(["cliffs", "--quick", "--out", str(out)])
    again = json.loads(out.read_text())
    assert again["problems"] == result["problems"]
    assert set(again["breaks"]["by_scan"]) == {name}


@pytest.mark.slow
def test_a_process_gives_the_figures_of_a_scan():
    figures = cliffs.worker(cliffs.QUICK[0], quick=True)
    assert set(figures) == {"share", "share_reference", "seconds"}
    assert all(np.shape(values) == (2, 3) for values in figures.values())


def test_breaks_are_counted_and_printed_and_failures_named(monkeypatch, capsys):
    def worker(name, quick):
        if name.startswith("shots."):
            raise RuntimeError("exit status 1")
        n = len(_cliffs.scans()[name].points)
        share = draws(*np.arange(n) > 3)
        return {"share": share.tolist(), "seconds": np.ones((4, n)).tolist()}

    monkeypatch.setattr(cliffs, "worker", worker)
    args = SimpleNamespace(
        only=["last_rows", "shots.FGNSoftmaxHead"],
        quick=False,
        minutes=None,
        out=None,
        write=lambda answer: None,
    )
    answer = cliffs.run(args)
    assert answer["breaks"]["total"] == 1
    assert answer["breaks"]["by_scan"] == {"last_rows.SegmentedRegressor": 1}
    assert answer["breaks"]["by_rule"][5] == 1
    assert answer["failed"] == {"shots.FGNSoftmaxHead": "exit status 1"}
    assert "last_rows.SegmentedRegressor at 5, 6, 7: share 0, 0, 1" in (
        capsys.readouterr().out
    )


def test_no_scan_begins_that_would_end_too_late(monkeypatch):
    monkeypatch.setattr(cliffs, "worker", None)
    args = SimpleNamespace(only=["shots"], quick=False, minutes=0.01, out=None)
    args.write = None
    assert cliffs.run(args)["failed"] == {"shots.FGNSoftmaxHead": "no time was left"}
