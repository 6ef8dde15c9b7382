"""The benchmark of GPUs: it goes on where it was cut, and knows its experiments."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as runner
from benchmarks import (
    device_fits,
    fgn_heads,
    gpu,
    pinn_paper,
    sggn_1d,
    sggn_large,
    varpro_images,
)


@pytest.fixture
def calls(monkeypatch):
    """Names of the steps that are run; the second one fails the first time."""
    names = []

    def run_step(step, args, seconds):
        names.append(step.name)
        if names.count(step.name) == 1 and len(names) == 2:
            raise RuntimeError("out of memory")
        return {step.name: {"description": "", "methods": {}}}

    monkeypatch.setattr(gpu, "run_step", run_step)
    return names


def test_a_later_run_does_what_is_missing(tmp_path, calls, capsys):
    out, names = tmp_path / "gpu.json", [step.name for step in gpu.steps()[:3]]
    command = ["gpu", "--quick", "--out", str(out), "--only", *names]
    runner.main(command)
    first = json.loads(out.read_text())
    assert calls == names
    assert first["done"] == [names[0], names[2]]
    assert first["failed"] == {names[1]: "out of memory"}
    runner.main(command)
    second = json.loads(out.read_text())
    assert calls == [*names, names[1]]
    assert set(second["problems"]) == set(names)
    assert second["failed"] == {}


def test_every_step_is_written_at_once(tmp_path, monkeypatch):
    written = []

    def run_step(step, args, seconds):
        if len(written) == 2:
            raise KeyboardInterrupt
        return {step.name: {}}

    monkeypatch.setattr(gpu, "run_step", run_step)
    args = SimpleNamespace(
        minutes=9.0, quick=True, out=tmp_path / "none", only=None, write=written.append
    )
    with pytest.raises(KeyboardInterrupt):
        gpu.run(args)
    assert len(written) == 2


def test_no_step_begins_that_would_end_too_late(tmp_path, calls):
    runner.main(["gpu", "--quick", "--minutes", "0.1", "--out", str(tmp_path / "a")])
    assert calls == []


def test_default_fits_of_every_estimator_come_first(tmp_path):
    names = [step.name for step in gpu.steps()[: len(device_fits.PROBLEMS)]]
    assert names == [f"device_fits.{name}" for name in device_fits.PROBLEMS]
    args = SimpleNamespace(quick=False, seconds=None)
    assert sum(gpu.minutes_of(s, args) for s in gpu.steps()[: len(names)]) <= 8.0
    out = tmp_path / "fits.json"
    command = ["device_fits", "--quick", "--out", str(out), "--only"]
    runner.main([*command, "varpro_classifier_10000", device_fits.HEAD])
    result = json.loads(out.read_text())["problems"]
    for problem in result.values():
        (method,) = problem["methods"].values()
        assert method["runs"][0]["log_loss"] < 1.1


@pytest.mark.slow
def test_the_problems_of_the_steps_exist(tmp_path):
    cases = pinn_paper.cases(quick=True)
    known = {
        "device_fits": set(device_fits.PROBLEMS),
        "pinn_paper": {
            *cases,
            *pinn_paper.default_cases(cases),
            *pinn_paper.mixed_cases(cases),
        },
        "fgn_heads": {"cars_like", "udhr", "mnist", "letters"},
        "varpro_images": {"mnist", "fashion_mnist"},
        "sggn_large": set(sggn_large.PROBLEMS),
        "sggn_1d": set(sggn_1d.PROBLEMS),
    }
    args = SimpleNamespace(quick=False, features=None, data=tmp_path)
    assert known["varpro_images"] <= set(varpro_images.data_sets(args))
    assert known["fgn_heads"] <= {"cars_like", *fgn_heads.data_sets(args)}
    for step in gpu.steps():
        assert step.experiment in runner.experiments()
        assert step.problem is None or step.problem in known[step.experiment]
