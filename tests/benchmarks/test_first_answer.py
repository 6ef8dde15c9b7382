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


def figures_of_a_process():
    task = first_answer.quick_tasks()["table_small"]
    return first_answer.fresh_process(task, task.methods["mlp"], False)


def figures_of_a_fresh_one():
    return first_answer.run_process("table_small", "mlp", True)


@pytest.mark.parametrize(
    "figures",
    [
        figures_of_a_process,
        pytest.param(figures_of_a_fresh_one, marks=pytest.mark.slow),
    ],
)
def test_a_process_gives_its_figures(figures):
    found = figures()
    assert found["answer_seconds"] == pytest.approx(
        found["import_seconds"] + found["first_fit_seconds"]
    )
    assert 0.5 < found["score"] < 1
