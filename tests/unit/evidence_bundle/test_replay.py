"""Evidence bundles of runs that 1.0.0 left, made after a judgement of today and judged again elsewhere."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION, version
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import (
    contents,
    replay,
    signing_keys,
    statement,
)

from tests.kit.actions import run_action
from tests.kit.bundled_runs import PLACES, RELEASE, edit, judged_run, make

pytestmark = pytest.mark.usefixtures("shipped_proofs")

#: Never in a bundle: keys and memories of a run's own controller.
OTHERS = (
    ".state/store.json",
    ".state/gang_keys.json",
    ".state/collected.json",
    "report.html",
    "gangs/all/.state/gang_keys.json",
)
#: Lets the child judge, and prints each file that it opens.
WATCHED = """
import sys
sys.addaudithook(lambda event, told: event == "open" and print("opened", told[0], told[1], file=sys.stderr))
"""


@pytest.fixture
def changed(judged_bundle, tmp_path):
    return Path(shutil.copytree(judged_bundle, tmp_path / "changed"))


@pytest.mark.parametrize("place", PLACES)
def test_a_run_of_1_0_is_judged_reported_and_bundled_without_its_store(place, tmp_path):
    run = judged_run(place, tmp_path)
    for name in OTHERS:
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_text("{}")
    planned = make(run, check_mode=True)
    assert planned.result["changed"] and not (run.path / contents.FOLDER).exists()
    made = make(run)
    assert not made.failed and made.result["changed"], made.text
    target = run.path / contents.FOLDER
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    files.remove(statement.STATEMENT)
    assert (run.path / "verify_bundle.py").stat().st_size
    checked = statement.check(target, signing_keys.read_known_keys(run.results))
    assert not checked.problems and checked.predicate["run_id"] == run.path.name and "not signed" in made.text
    assert len(files) == made.result["files"] == planned.result["files"]
    assert not {f"run/{name}" for name in OTHERS} & files
    assert {
        f"run/nodes/{name}/facts.json" for name in run.read_run()["nodes"] if run.evidence_file(name, "facts").exists()
    } <= files
    for name in files:
        kind, _, path = name.partition("/")
        assert (target / name).read_bytes() == ({"run": run.path, "data": COLLECTION}[kind] / path).read_bytes()
    again = make(run)
    assert again.result["changed"] is False
    signing_keys.ensure_key(run.results.parent / "state", rotate=False)
    planned, before = make(run, check_mode=True), (target / statement.STATEMENT).read_bytes()
    assert planned.result["changed"] and "would be signed" in planned.text
    assert (target / statement.STATEMENT).read_bytes() == before
    signed = make(run)
    assert signed.result["changed"] and "signed by" in signed.text
    assert make(run).result["changed"] is make(run, check_mode=True).result["changed"] is False
    (target / statement.STATEMENT).unlink()
    assert make(run).result["changed"]
    assert not list(run.path.glob(f".{contents.FOLDER}.*"))


def test_a_run_whose_files_changed_after_its_report_has_no_bundle_until_it_is_reported_again(tmp_path):
    run = judged_run("ssh", tmp_path)
    run.add_problems([{"node": None, "stage": None, "reason": "a problem that came later"}])
    outcome = make(run)
    assert outcome.failed and not (run.path / contents.FOLDER).exists()
    assert re.search(rf"does not come out .*a problem that came later.*`make report RUN={run.path.name}`", outcome.text)
    (run.state / "judgement.json").unlink()
    assert f"`make report RUN={run.path.name}`" in make(run).text
    run_action("judge_run", {"run_id": run.path.name, "results_dir": str(run.results)})
    outcome = make(run)
    assert not outcome.failed, outcome.text


def judge_by(command, folder, environment=None):
    """Judge again by a command line, which writes into the folder."""
    done = subprocess.run(
        command,
        env=replay.environment(folder) if environment is None else environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("days", "environment"),
    [
        (0, {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
        (
            400,
            {"TZ": "America/St_Johns", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "2", "GPUVAL_AGAIN": "docker run x"},
        ),
    ],
)
def test_another_clock_time_zone_locale_and_order_of_sets_give_the_same_bytes(
    judged_bundle, tmp_path, days, environment
):
    replay.lay_out_data(judged_bundle, tmp_path)
    command = [sys.executable, *replay.arguments(judged_bundle / "run", tmp_path)]
    command.remove("-I")  # without which Python reads no environment
    later = ["faketime", "-f", f"+{days}d"] if days else []
    judge_by([*later, *command], tmp_path, {**os.environ, **environment})
    assert (tmp_path / "report.json").read_bytes() == (judged_bundle / "run/report.json").read_bytes()


def test_libraries_of_a_loaded_module_stay_those_of_python(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/python/lib")
    assert replay.environment(tmp_path)["LD_LIBRARY_PATH"] == "/opt/python/lib"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert "LD_LIBRARY_PATH" not in replay.environment(tmp_path)


def test_a_user_whose_memory_is_limited_judges_within_that_limit(judged_bundle, tmp_path):
    replay.lay_out_data(judged_bundle, tmp_path)
    as_user = ["setpriv", "--bounding-set=-sys_resource"] if os.geteuid() == 0 else []  # who cannot raise a limit
    limited = [*as_user, "sh", "-c", 'ulimit -v 6000000 && exec "$@"', "sh"]
    command = [*limited, sys.executable, *replay.arguments(judged_bundle / "run", tmp_path)]
    judge_by(command, tmp_path)
    assert (tmp_path / "report.json").read_bytes() == (judged_bundle / "run/report.json").read_bytes()


def test_a_replay_opens_nothing_but_the_bundle_its_own_folder_and_code(judged_bundle, tmp_path):
    replay.lay_out_data(judged_bundle, tmp_path)
    command = [sys.executable, *replay.arguments(judged_bundle / "run", tmp_path)]
    command[command.index("-c") + 1] = WATCHED + command[command.index("-c") + 1]
    done = judge_by(command, tmp_path)
    opened = [line.split() for line in done.stderr.splitlines() if line.startswith("opened")]
    reading = {path for _, path, mode, *_ in opened if path.startswith("/") and mode != "w"}
    places = (
        judged_bundle,
        tmp_path,
        COLLECTION / "schemas",
        sys.prefix,
        sys.base_prefix,
        "/usr",
        "/proc",
        "/dev",
        "/etc",
    )
    strangers = {path for path in reading if not path.startswith(tuple(map(str, places)))}
    assert {path for path in strangers if not path.endswith((".py", ".pyc"))} == set()
    assert any(path.startswith(str(tmp_path / "data/skus")) for path in reading)
    assert not any(path.startswith(str(COLLECTION)) and path.endswith(".yml") for path in reading)


def test_an_unchanged_bundle_has_no_difference(judged_bundle):
    result = replay.replay(judged_bundle)
    assert result.differences == [] and result.problem() == ""


def test_a_changed_record_is_named_with_its_node_and_check(changed):
    path = changed / "run/nodes/node-002/facts.json"
    record = json.loads(path.read_text())
    record["metrics"][0]["value"] += 1
    path.write_text(json.dumps(record))
    differences = replay.replay(changed).differences
    named = [one for one in differences if one.node == "node-002"]
    assert named and {one.file for one in named} >= {"run/nodes/node-002/facts.json"}
    assert all(one.kept != one.judged for one in differences)


def test_a_changed_criterion_of_the_bundle_judges_and_is_named(changed):
    path = changed / "data/roles/facts/files/criteria.yml"
    path.write_text(path.read_text().replace("severity: required", "severity: advisory"))
    result = replay.replay(changed)
    assert {one.node for one in result.differences} - {""}
    assert all(one.kept != one.judged for one in result.differences)


def test_checks_that_1_0_judged_otherwise_are_named_with_their_reasons(tmp_path):
    run = judged_run("ssh", tmp_path)
    outcome = make(run)
    assert not outcome.failed, outcome.text
    bundle = run.path / contents.FOLDER
    shutil.copy(next((RELEASE / "ssh/results").glob("2*/report.json")), bundle / "run/report.json")
    edit(bundle / "run/.state/judgement.json", f'"version": "{version()}"', '"version": "1.0.0"')
    result = replay.replay(bundle)
    named = {(one.node, one.check): one for one in result.differences}
    for node in ("node-001", "node-002", "node-004"):
        assert (named[node, "verdict"].kept, named[node, "verdict"].judged) == ("PASS", "INCOMPLETE (facts_coherent)")
        reason = "missing (contradiction: record.duration_seconds 12.5 s and record.span_seconds 0 s"
        assert named[node, "facts_coherent"].kept == "no such check"
        assert named[node, "facts_coherent"].judged.startswith(reason)
    assert {node for node, check in named if check == "verdict"} == {"node-001", "node-002", "node-004"}
    assert all(one.kept.split(" ")[0] != one.judged.split(" ")[0] for one in result.differences)
    told = f"judged by gpuval 1.0.0 before, by {version()} here: verdicts differ on 5 nodes"
    assert result.remarks[0].startswith(told) and result.foreign_data == []


def test_a_report_of_another_release_with_the_same_verdicts_says_what_else_differs(changed):
    edit(changed / "run/.state/judgement.json", f'"version": "{version()}"', '"version": "2.9.0"')
    edit(changed / "run/report.json", '"reason":"started"', '"reason":"begun"')
    result = replay.replay(changed)
    assert result.differences and "every check has the same verdict; gpuval 2.9.0 compares" in result.problem()


def test_data_files_that_are_not_those_of_the_release_are_named(changed):
    assert replay.foreign_data(changed) == []
    edit(changed / "data/roles/facts/files/criteria.yml", "severity: required", "severity: advisory")
    (changed / "data/skus/mine.yml").write_text("{}")
    (changed / "data/failures/launch.yml").unlink()
    names = ["data/failures/launch.yml", "data/roles/facts/files/criteria.yml", "data/skus/mine.yml"]
    assert replay.foreign_data(changed) == names


def test_a_changed_report_is_named(changed):
    edit(changed / "run/report.json", '"verdict":"PASS"', '"verdict":"FAIL"')
    assert replay.replay(changed).differences
    shutil.copy(changed / "run/run.json", changed / "run/report.json")
    assert "no report" in replay.replay(changed).problem()


@pytest.mark.parametrize("text", ["", "{}", "[" * 200_000, None])
def test_a_bundle_without_a_readable_report_is_told(changed, text):
    path = changed / "run/report.json"
    path.unlink() if text is None else path.write_text(text)
    assert "no report" in replay.replay(changed).problem()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda bundle: (bundle / "run/.state/judgement.json").unlink(), "judgement.json"),
        (lambda bundle: (bundle / "run/.state/judgement.json").write_text("[]"), "judgement.json"),
        (lambda bundle: (bundle / "run/run.json").write_text("{"), "run.json"),
        (lambda bundle: (bundle / "data/failures/stages.yml").write_text("a: *b"), "not YAML"),
        (lambda bundle: shutil.rmtree(bundle / "run"), "no run in"),
    ],
)
def test_a_bundle_that_cannot_be_judged_says_why(changed, damage, reason):
    damage(changed)
    with pytest.raises(replay.ReplayError, match=reason):
        replay.replay(changed)


def test_no_code_of_a_bundle_runs(changed, tmp_path):
    for name in (
        "run/sitecustomize.py",
        "data/plugins/plugin_utils/slurm/scheduler.py",
        "extensions/x/stages/y/__init__.py",
    ):
        (changed / name).parent.mkdir(parents=True, exist_ok=True)
        (changed / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert replay.replay(changed).differences == []
    assert not (tmp_path / "ran").exists()


def test_a_replay_that_takes_too_long_is_ended(judged_bundle):
    with pytest.raises(replay.ReplayError, match="did not end within"):
        replay.replay(judged_bundle, seconds=0.05)
