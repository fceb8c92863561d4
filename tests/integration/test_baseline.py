"""`make baseline` and its diff as an operator uses them, on the results of a run that was judged."""

import copy
import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.builders import LAUNCHED, STAGES, accepted, healthy, judge, make_run, metric
from tests.kit.project import Project
from tests.kit.reports import json_text


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path, nodes={"localhost": {}})
    project.lay_out()
    yield project
    project.close()


def put_run(project, run_id, *, tflops=700.0, bad=()):
    """A judged run of six nodes in results/, of which ``bad`` failed."""
    names = [f"node-{number}" for number in range(1, 7)]
    run = make_run(names, stages=STAGES, run_id=run_id)
    evidence = healthy(run)
    for number, name in enumerate(names):
        for record in evidence.records[name].values():
            record["run_id"] = run_id
        training = evidence.records[name]["training"]
        rate = (tflops + number) * (0.5 if name in bad else 1)
        training["metrics"] = [
            *(one for one in training["metrics"] if one["name"] != "training_model_tflops"),
            *(metric("training_model_tflops", rate + gpu / 10, "TFLOP/s", f"gpu:{gpu}") for gpu in range(8)),
        ]
    folder = run_folder.RunFolder(project.root / "results" / run_id)
    folder.write_run(run)
    for name, records in evidence.records.items():
        folder.write_launch(name, {"node": name, **LAUNCHED})
        for stage, record in records.items():
            run_folder.write_json(folder.evidence_file(name, stage), accepted(record))
    (folder.path / "report.json").write_text(json_text(judge(run, copy.deepcopy(evidence))))
    run_folder.remember(folder)


def test_baselines_are_made_numbered_and_compared(project):
    put_run(project, "run-1", bad=("node-3",))
    done = project.play("gpuval.fleet.baseline")
    assert done.code == 0, done
    document = json.loads((project.root / "baselines/site-v1.json").read_text())
    assert document["made_from"]["left_out"] == {"FAIL": 1}
    assert "of 5 accepted nodes of run run-1 (1 FAIL left out)" in done.told
    assert "training training_model_tflops per gpu (" in done.told

    put_run(project, "run-2", tflops=650.0)
    done = project.play("gpuval.fleet.baseline")
    assert done.code == 0, done
    assert "since version 1:" in done.told
    assert "fell by 7" in done.told

    arguments = [f"baseline_{key}={project.root}/baselines/site-v{version}.json" for key, version in
                 (("before", 2), ("after", 1))]  # fmt: skip
    done = project.play("gpuval.fleet.compare_baselines", "-e", arguments[0], "-e", arguments[1])
    assert done.code == 0, done
    assert "from site version 2 to site version 1:" in done.told
    assert "rose by 7" in done.told


def test_spreads_are_kept_and_never_judge_their_own_run(project):
    put_run(project, "run-1")
    done = project.play("gpuval.fleet.baseline", "-e", "baseline_state=spreads", "-e", "baseline_name=b300")
    assert done.code == 0, done
    path = project.root / "baselines/b300-v1.json"
    (sku,) = json.loads(path.read_text())["spreads"]
    assert sku["nodes"] == 6 and "training_model_tflops" in sku["part_spreads"]
    assert "without their values, of 6 accepted nodes of run run-1" in done.told
    assert "such a run is PARTIAL, and cannot be run-1" in done.told

    done = project.play("gpuval.fleet.report", "-e", f"gpuval_baseline={path}")
    assert done.code != 0
    assert "spreads of run run-1, which they cannot judge: leave out gpuval_baseline" in done.output

    put_run(project, "run-2", tflops=650.0)
    done = project.play("gpuval.fleet.report", "-e", f"gpuval_baseline={path}")
    report = json.loads((project.root / "results/run-2/report.json").read_text())
    assert report["run"]["narrowed_by"] == ["spreads"]
    assert "Narrowed by spreads of another run: PARTIAL at best" in done.told


def test_a_baseline_that_cannot_be_used_stops_the_run_before_it_starts(project):
    broken = project.root / "broken.json"
    broken.write_text("{}")
    done = project.play("gpuval.fleet.validate", "-e", f"gpuval_baseline={broken}")
    assert done.code != 0
    assert "not a baseline" in done.output
    assert not (project.root / "results").exists()
