"""The gates: the rules that compare figures, the metrics, and a row of two trees."""

import gzip
import json
import math
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as runner
from benchmarks import gates
from benchmarks._gates import common, first_answer, lines, processes, tables, worker

ROW = gates.QUICK[0]

# A figure, its value before, and two values after: within its tolerance, and beyond.
WORSE = (
    ("r2", 0.9, 0.8971, 0.8969),
    ("log_loss", 0.5, 0.5029, 0.5031),
    ("error", 1e-3, 1.29e-3, 1.31e-3),
    ("error_position", 1e-12, 9e-10, 1.4e-9),
    ("coverage", 0.95, 0.9301, 0.9299),
    ("coverage", 0.97, 0.9101, 0.9099),  # as far as 0.99, and 0.02 more
    ("share", 0.8, 0.7801, 0.7799),
    ("share_f1", 0.8, 0.7801, 0.7799),
    ("first_seconds", 1.0, 1.19, 1.21),
    ("first_seconds_import", 0.05, 0.0699, 0.0701),  # factors of what is instant
    ("later_seconds", 2.0, 2.39, 2.41),
    ("peak_mib", 100.0, 119.0, 121.0),
    ("r2", 0.9, 0.9, math.nan),
    ("error", 0.1, 0.1, math.inf),
)


@pytest.mark.parametrize(("figure", "before", "within", "beyond"), WORSE)
def test_a_figure_is_worse_beyond_its_tolerance(figure, before, within, beyond):
    assert common.changes({figure: before}, {figure: within}) == ([], [])
    assert common.changes({figure: before}, {figure: beyond}) == ([figure], [])
    assert common.changes({figure: beyond}, {figure: before}) == ([], [figure])


@pytest.mark.parametrize(
    ("figure", "worse", "better"),
    [
        ("r2", 0.8, 0.9),
        ("share", 0.8, 0.9),
        ("log_loss", 0.9, 0.8),
        ("error", 0.9, 0.1),
        ("coverage", 0.99, 0.95),
        ("coverage", 0.7, 0.92),
        ("later_seconds", 3.0, 1.0),
        ("peak_mib", 300.0, 100.0),
    ],
)
def test_the_better_direction_of_a_figure(figure, worse, better):
    assert common.gain(figure, worse, better) > 1
    assert common.gain(figure, better, worse) < -1


def test_rows_without_an_answer():
    assert common.changes({"r2": 1.0}, None) == (["answer"], [])
    assert common.changes(None, {"r2": 1.0}) == ([], ["answer"])
    assert common.changes(None, None) == ([], [])
    # A figure that only one of them has, and words, are not compared.
    assert common.changes({"later_seconds": 1.0, "asked": ["a"]}, {"r2": 1.0}) == (
        [],
        [],
    )


def test_what_got_worse_once_only_is_not_worse():
    before, after = {"r2": 0.9, "error": 1.0}, {"r2": 0.8, "error": 2.0}
    noise = {"r2": 0.9, "error": 2.0}
    answers = {
        gates.HERE: [processes.Answer(after), processes.Answer(noise)],
        "REF": [processes.Answer(before), processes.Answer(before)],
    }
    assert gates.judged(answers) == [["error"], []]


class Estimator:
    """Fits take as long as asked for, by a clock of their own."""

    now = 0.0

    def __init__(self, seconds):
        self.seconds = seconds

    def fit(self):
        Estimator.now += self.seconds
        return self


@pytest.mark.parametrize(("first", "later"), [(1.0, 3.0), (9.0, None)])
def test_there_are_no_later_fits_where_the_first_takes_long(monkeypatch, first, later):
    monkeypatch.setattr(common.time, "process_time", lambda: Estimator.now)
    seconds = [first, 2.0, 3.0, 7.0]
    model, figures = common.timed_fits(lambda seed: Estimator(seconds[seed]), later=3)
    assert model.seconds == first
    assert figures.pop("first_seconds") == first
    assert figures == ({} if later is None else {"later_seconds": later})


# --- metrics and data ----------------------------------------------------------------


def test_covering_of_segments():
    assert lines.covering([3, 7], [3, 7], 10) == pytest.approx(1)
    # Halves are covered by quarters to a half.
    assert lines.covering([4], [2, 4, 6], 8) == pytest.approx(0.5)
    # Both parts, of 2 and 6 points, are covered by one segment of all 8.
    assert lines.covering([2], [], 8) == pytest.approx((2 * 2 + 6 * 6) / 64)


def test_f1_of_changes_within_the_margin():
    assert lines.f1([[20, 50]], [20, 50]) == pytest.approx(1)
    assert lines.f1([[20, 50]], [25, 45]) == pytest.approx(1)
    # One of two changes found, and the start: precision 1, recall 2/3.
    assert lines.f1([[20, 50]], [26, 50]) == pytest.approx(2 / 3)
    assert lines.f1([[20, 50]], [50]) == pytest.approx(0.8)
    # One change found twice counts once; two annotators see one each.
    assert lines.f1([[20]], [19, 21]) == pytest.approx(0.8)
    assert lines.f1([[20], [50]], [20]) == pytest.approx(2 * 0.75 / 1.75)


@pytest.mark.parametrize("jumps", [False, True])
def test_simulated_series_break_where_they_say(jumps):
    rng = np.random.default_rng(3)
    X, _, breaks, truth = lines.series(rng, 4000, 3, jumps, 0.5)
    curvature = np.abs(np.diff(np.diff(truth) / np.diff(X[:, 0])))
    largest = X[1:-1, 0][curvature > 1e-3]
    assert len(breaks) == 3
    assert all(np.min(abs(largest - b)) < 0.01 for b in breaks)
    assert all(np.min(abs(breaks - x)) < 0.01 for x in largest)


ARFF = """@relation small
@attribute size numeric
@attribute nothing numeric
@attribute colour {red, green}
@attribute Class {a, b}
@data
1,?,red,a
?,?,?,b
3,?,green,b
8,?,green,a
"""


def test_categories_and_missing_values_of_a_table(tmp_path):
    path = tmp_path / "small.arff"
    path.write_text(ARFF)
    X, y = tables.attributes(path)
    np.testing.assert_array_equal(X[:, 0], [1, 3, 3, 8])
    np.testing.assert_array_equal(X[:, 1:], [[0, 1], [1, 0], [1, 0], [1, 0]])
    assert list(y) == ["a", "b", "b", "a"]


def test_a_table_of_numbers(tmp_path):
    path = tmp_path / "small.csv.gz"
    path.write_bytes(gzip.compress(b"1,2,3\n4,5,6\n"))
    X, y = tables.numbers(path)
    assert X.tolist() == [[1, 2], [4, 5]]
    assert y.tolist() == [3, 6]


def test_rows_without_data_are_left_out(tmp_path, capsys):
    without = set(tables.rows(None)), set(lines.rows(tmp_path))
    assert capsys.readouterr().err.count("Left out") == 2
    (tmp_path / "tables").mkdir()
    (tmp_path / "tcpd").mkdir()
    (tmp_path / "tcpd" / "series.json").write_text("{}")
    assert without[0] < set(tables.rows(tmp_path))
    assert without[1] < set(lines.rows(tmp_path))
    assert not capsys.readouterr().err


# --- rows ----------------------------------------------------------------------------


def test_rows_are_chosen_by_the_beginning_of_their_names():
    assert set(gates.chosen_rows(["first_answer"], None)) == {
        f"first_answer/{name}" for name in first_answer.rows(None)
    }
    assert list(gates.chosen_rows([ROW], None)) == [ROW]
    with pytest.raises(ValueError, match="No row begins with lines/nothing"):
        gates.chosen_rows(["lines/nothing"], None)


def test_a_worker_that_fails_or_takes_too_long_says_so():
    with processes.working_folder() as folder:
        failed = processes.ask("first_answer/nothing", folder)
        late = processes.ask(ROW, folder, seconds=0.01)
    assert failed == (None, "KeyError: 'nothing'")
    assert late == (None, "takes more than 0.01 seconds")


@pytest.mark.skipif(
    shutil.which("git") is None or not (processes.ROOT / ".git").exists(),
    reason="needs a checkout",
)
def test_the_tree_of_a_reference():
    with processes.working_folder("HEAD") as folder:
        assert (folder / "benchmarks" / "gates.py").samefile(gates.__file__)
        package = folder / "sklearn_gn"
        assert not package.is_symlink()
        assert (package / "segmented" / "estimator.py").exists()
    assert not folder.exists()


def test_a_worker_prints_the_figures_of_its_row(monkeypatch, capsys):
    for name in worker.ONE_THREAD:  # it sets them
        monkeypatch.setenv(name, "1")
    worker.main([ROW])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures) - {"asked"} == set(REFERENCE)


def test_peak_memory_is_not_that_of_the_parent():
    code = f"from {worker.__name__} import peak_mib; print(peak_mib())"
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=processes.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 1 < float(process.stdout) < worker.peak_mib() / 2


REFERENCE = {  # better, equal and worse than what any machine does
    "first_seconds_import": 1e-6,
    "first_seconds": 1e6,
    "later_seconds": 1e-6,
    "peak_mib": 1e6,
}


def test_a_quick_run_against_a_reference_fails_where_this_tree_is_worse(
    tmp_path, monkeypatch, capsys
):
    folder_of = gates.working_folder
    ours = processes.Answer({**dict.fromkeys(REFERENCE, 1.0), "asked": ["a"]})

    def folder(reference=None):
        return folder_of() if reference is None else nullcontext(Path(reference))

    def ask(row, folder, core, data):
        return processes.Answer(REFERENCE) if folder == Path("REF") else ours

    monkeypatch.setattr(gates, "working_folder", folder)
    monkeypatch.setattr(gates, "ask", ask)
    out = tmp_path / "gates.json"
    with pytest.raises(SystemExit) as end:
        runner.main(["gates", "--quick", "--against", "REF", "--out", str(out)])
    assert end.value.code == 1
    problem = json.loads(out.read_text())["problems"][ROW]
    assert problem["worse"] == ["first_seconds_import", "later_seconds"]
    assert problem["better"] == ["first_seconds", "peak_mib"]
    assert len(problem["methods"]["REF"]["runs"]) == 2  # the second confirms
    printed = capsys.readouterr().out
    assert f"Worse:\n  {ROW}: first_seconds_import 1e-06 -> 1" in printed
    assert f"Better:\n  {ROW}: first_seconds 1e+06 -> 1" in printed
