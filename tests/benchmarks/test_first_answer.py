"""The benchmark of fresh processes: its tasks, and one process."""

import pytest

from benchmarks import first_answer

TASKS = first_answer.tasks()


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_method_of_a_task_can_be_made(name):
    for method in TASKS[name].methods.values():
        if method is first_answer.PWLF:  # an extra of the benchmarks
            continue
        spaces = {**vars(first_answer), "y": [0]}
        exec(method.imports, spaces)
        assert hasattr(eval(method.make, spaces, {"seed": 3}), "fit")


def test_a_process_gives_its_figures():
    found = first_answer.run_process("line_small", "baseline_import", True)
    assert found["answer_seconds"] == pytest.approx(
        found["import_seconds"] + found["first_fit_seconds"]
    )
    assert 0 < found["score"] < 1
