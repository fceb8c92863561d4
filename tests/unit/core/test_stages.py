"""Stages and profiles as variables: those that ship, and those in a folder outside the collection."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions, stage_traits, stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError, SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data import ordinary_names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import (
    acceptance,
    coherence,
    comparisons,
    criteria,
    implicated_parts,
    plausible,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.entries import not_applicable
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.subjects import subject_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import brief, failure_classes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import prometheus
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.markdown import figure_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.page import nodes as page_nodes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import (
    applied_criteria,
    folder,
    opening,
    plans,
    settings,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import check_settings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launch_inputs

from tests.kit.builders import healthy, judge, make_record, make_run, metric
from tests.kit.extension import FILES, write_extension


@pytest.fixture
def write(tmp_path):
    """Writes an extension, which this process uses; files by name beside those of the kit, None for one that lacks."""

    def of(changed=(), files=FILES):
        kept = {name: text for name, text in {**files, **dict(changed)}.items() if text is not None}
        made = write_extension(tmp_path / "site", kept)
        extensions.use([made])
        return made

    yield of
    extensions.use(())


def declaration(stage, **values):
    """What a lookup gives for a stage, with the settings of a host."""
    known = {"gpuval_environment": {}, "gpuval_images": {}, "ansible_play_hosts_all": ["a", "b"], **values}
    templar = Templar(loader=DataLoader(), variables=known)
    with_defaults = stages.with_variables(templar, known)
    found = templar.copy_with_new_env(available_variables=with_defaults).template(with_defaults[f"{stage}_workload"])
    return plans.stage(stage, found, ["facts", "image", stage])


def test_profiles_are_their_files_the_shortest_first():
    known = stages.profiles()
    assert list(known) == ["quick", "standard", "burnin", "soak"]
    assert known["quick"].gang_stages == []
    for name, profile in known.items():
        assert settings.problems(profile.settings) == [], name
        assert {*profile.stages, *profile.gang_stages} <= extensions.found("stages").keys()
        usual = stages.variables("")
        own = {key for key in profile.settings if key != "gpuval_deadline_seconds"}
        assert {key for key in own if profile.settings[key] == usual[key]} == set(), "defaults are repeated"
        assert settings.problems(profile.cpu_settings) == [], name
        assert all(0 < value < profile.settings[key] for key, value in profile.cpu_settings.items()), name


LOCAL = {"ansible_connection": "local", "gpuval_placement": "ssh"}


@pytest.mark.parametrize(
    ("values", "has_gpus", "is_cpu_node"),
    [
        (LOCAL, False, True),
        ({"ansible_connection": "local"}, False, True),
        ({**LOCAL, "gpuval_sku": "auto"}, False, True),
        (LOCAL, True, False),
        ({**LOCAL, "gpuval_gpu_count": 8}, False, False),  # they fell off the bus
        ({**LOCAL, "gpuval_sku": "h200"}, False, False),
        ({"gpuval_sku": "cpu"}, True, True),
        ({**LOCAL, "gpuval_sku": "cpu"}, True, True),
        ({"gpuval_placement": "ssh"}, False, False),  # another machine, which nobody has looked at
        ({"ansible_connection": "ssh"}, False, False),
        ({**LOCAL, "gpuval_placement": "kubernetes"}, False, False),
        ({**LOCAL, "gpuval_placement": "slurm"}, False, False),
        ({**LOCAL, "gpuval_gpu_count": trust_as_template("{{ 4 + 4 }}")}, False, False),
        ({**LOCAL, "gpuval_gpu_count": trust_as_template("{{ no_such_variable }}")}, False, False),
    ],
)
def test_stages_are_shorter_where_no_gpu_is_tested(monkeypatch, values, has_gpus, is_cpu_node):
    monkeypatch.setattr(stages, "_this_machine_has_gpus", lambda: has_gpus)
    templar = Templar(loader=DataLoader(), variables={})
    chosen = stages.with_variables(templar, {"gpuval_profile": "quick", **values})
    quick = stages.profiles()["quick"]
    used = quick.cpu_settings if is_cpu_node else quick.settings
    assert {name: chosen[name] for name in quick.cpu_settings} == {name: used[name] for name in quick.cpu_settings}
    assert chosen["storage_seconds"] == quick.settings["storage_seconds"]
    assert (
        stages.with_variables(templar, {**values, "gpuval_profile": "quick", "training_seconds": 7})["training_seconds"]
        == 7
    )
    for name in ("standard", "burnin", "soak"):
        with_profile = stages.with_variables(templar, {"gpuval_profile": name, **values})
        assert {**stages.variables(name), **values, "gpuval_profile": name} == with_profile


@pytest.mark.parametrize(
    ("files", "has_gpus"),
    [
        ({}, False),
        (
            {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x8086", "sys/bus/pci/devices/0000:01:00.0/class": "0x030000"},
            False,
        ),
        (
            {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200"},
            True,
        ),
        (
            {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x1da3", "sys/bus/pci/devices/0000:01:00.0/class": "0x120000"},
            True,
        ),
        # only AMD's tool can tell whether it is one
        (
            {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x1002", "sys/bus/pci/devices/0000:01:00.0/class": "0x030000"},
            True,
        ),
        ({"proc/driver/nvidia/gpus/0000:01:00.0": ""}, True),
        ({"dev/dxg": ""}, True),
        ({"dev/nvidia3": ""}, True),  # gVisor shows no PCI bus
        ({"dev/nvidiactl": "", "dev/nvidia-uvm": ""}, False),  # a driver alone
        ({"dev/kfd": ""}, True),
    ],
)
def test_gpus_of_this_machine_are_those_that_facts_may_find(monkeypatch, tmp_path, files, has_gpus):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(stages, "Tree", lambda: Tree(str(tmp_path)))
    stages._this_machine_has_gpus.cache_clear()
    assert stages._this_machine_has_gpus() is has_gpus
    stages._this_machine_has_gpus.cache_clear()


@pytest.mark.parametrize(
    ("profile", "seconds"), [("quick", 20), ("standard", 300), ("burnin", 14400), ("soak", 259200), ("mine", 300)]
)
def test_a_profile_replaces_defaults_of_stages_and_a_host_those_of_the_profile(profile, seconds):
    templar = Templar(loader=DataLoader(), variables={})
    assert stages.with_variables(templar, {"gpuval_profile": profile})["training_seconds"] == seconds
    chosen = {"gpuval_profile": trust_as_template(f"{{{{ '{profile}' }}}}"), "training_seconds": 7}
    assert stages.with_variables(templar, chosen)["training_seconds"] == 7


@pytest.mark.parametrize(
    ("depth", "applying"),
    [("quick", 0), ("standard", 1), ("burnin", 2), ("soak", 9)],
)
def test_criteria_of_its_depth_apply_to_a_profile_whatever_its_name(write, depth, applying):
    text = f"schema: gpuval.profile/1\ndepth: {depth}\nstages: [facts]\n"
    write({"profiles/night.yml": text})
    deeper = [check for check in criteria.beside_shipped([]) if check.applies.depth != "quick"]
    assert len(deeper) == 9
    run = make_run(["node-1"], profile="night")
    subject = subject_of(run, "node-1", healthy(run))
    subject.accelerator, subject.declared_gpus = "nvidia", 8
    assert len([check for check in deeper if not not_applicable(check, subject)]) == applying
    extensions.use(())
    kept = subject_of({**run, "depth": depth}, "node-1", healthy(run))
    assert kept.depth == depth, "run.json has it, where the extension is away"


def test_a_stage_of_an_extension_is_one_of_all(write):
    write()
    assert declaration("burn", gpuval_profile="night")["timeout_seconds"] == 66
    assert declaration("burn", gpuval_profile="night", burn_seconds=10)["timeout_seconds"] == 80
    of_gpus = [plans.stage(name, {"command": ["true"]}, [name]).get("gpus") for name in ("burn", "storage", "training")]
    assert of_gpus == ["none", "none", None], "what a plan does not say of a stage works on them"
    assert "burn" in settings.stages({})
    assert not settings.is_shipped("burn")
    assert settings.unknown_tags(["burns"]) == ["--tags burns: no such stage; is it burn?"]
    assert "burn_seconds" in settings.declared().options
    assert ordinary_names.is_ordinary("burn")
    assert criteria.problems_of_extensions() == []
    assert [check.name for check in criteria.beside_shipped([]) if check.stage == "burn"] == ["burn_turned"]
    assert failure_classes.class_named("burn_turned").ladder == "gpu_damage"
    assert failure_classes.class_named("burn_slow_turns").ladder == "part_slow"
    assert failure_classes.class_named("burn_crash").name == "*_crash", (
        "an end has its class, whatever patterns are here"
    )
    assert plausible.range_of("burn_turns_count").high == 1000
    assert "burn_seconds_planned" in [rule.name for rule in coherence.rules_for("burn", frozenset({"burn_seconds"}))]
    assert coherence.rules_for("burned", frozenset({"burn_seconds"})) == coherence.rules_for("other", frozenset())
    extensions.use(())
    assert "burn_seconds_planned" not in [rule.name for rule in coherence.rules()]
    assert "burn_seconds" not in settings.declared().options
    assert failure_classes.class_named("burn_turned") is None
    assert plausible.range_of("burn_turns_count").high > 1000
    assert not ordinary_names.is_ordinary("burn")


def test_what_people_see_of_a_stage_of_an_extension_is_what_it_declares(write):
    write()
    run = make_run(["good", "other"], stages=["facts", "burn"], sku="cpu")
    evidence = healthy(run, gpus=0, vendor="cpu")
    for node in run["nodes"]:
        metrics = [metric("burn_turns_count", 800, "count")]
        evidence.records[node]["burn"] = make_record(node, "burn", metrics=metrics, message="")
    report = judge(run, evidence)
    assert "burn (median of 2 nodes): 800 turned" in summary_lines(report)
    assert 'gpuval_burn_turns{node="good",gpu="",serial=""} 800' in prometheus.run_text(report)
    assert ("burn", "burn_turns_count") in page_nodes.NodeTable(report).columns
    assert figure_lines(report["nodes"][0]) == ["Node: good, Turns: 800"]
    assert brief.fields(evidence.records["good"]["burn"])["figures"] == {"burn_turns_count": 800}
    assert not acceptance.may_use_gpus(["facts", "burn"]), "it declares that it does not"
    shortened = opening.shortened(["burn"], {"burn_turns": 3}, lambda text: 3 if "burn_turns" in text else "night")
    assert shortened == ["burn_turns 3"]
    assert settings.problems({"burn_seconds": 4000}) == ["burn_seconds 4000: must be more than 0, at most 3600"]
    rule = comparisons.comparison_rule_of("burn_turns_count")
    assert (rule.worse, rule.margin, rule.file) == ("lower", 0.05, "stages/burn/files/stage.yml")
    symptom = implicated_parts.Symptom(0, "node", "burn_turns_count", frozenset())
    assert symptom.is_of(implicated_parts.WAITING)
    extensions.use(())
    assert comparisons.comparison_rule_of("burn_turns_count").worse == "higher", "that of all stages"
    assert not symptom.is_of(implicated_parts.WAITING)
    assert acceptance.may_use_gpus(["facts", "burn"]), "nothing is known of it"


def test_its_program_travels_with_the_workloads(write):
    write()
    programs = extensions.files("stages", "program")
    for archives in (launch_inputs.archives(), launch_inputs.archives(bytecode=False)):  # of SSH and Slurm, and of pods
        names = zipfile.ZipFile(io.BytesIO(archives["workloads"])).namelist()
        assert {"gpuval_stages/__init__.py", "gpuval_stages/burn/__main__.py", "gpuval_stages/burn/words.py"} <= {
            *names
        }
    assert payload.workloads_zip(programs) == payload.workloads_zip(programs)
    added = len(payload.workloads_zip(programs)) - len(payload.workloads_zip())
    assert 0 < added < 4000
    before = payload.workloads_zip(programs)
    (programs[0] / ".words.py").symlink_to("/etc/hostname")
    (programs[0] / ".cache").mkdir()
    (programs[0] / ".cache/words.py").write_text("1")
    is_unchanged = payload.workloads_zip(programs) == before
    assert is_unchanged, "hidden files are in no digest, and anyone may own them"
    (programs[0] / "__init__.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"burn/program is not a Python package: add __init__.py"):
        payload.workloads_zip(programs)


def test_what_a_run_is_judged_by_holds_the_criteria_of_extensions(write, tmp_path):
    write()
    run = folder.RunFolder(tmp_path / "results/r")
    own = tmp_path / "own.yml"
    own.write_text("schema: gpuval.criteria/1\nchecks: []\n")
    applied_criteria.keep_criteria(run, [str(own)], "")
    assert [file["name"] for file in applied_criteria.kept_criteria(run)["criteria"]] == ["criteria.yml", "own.yml"]
    assert applied_criteria.judged_by(run, [str(own)], "")[2] == []
    applied_criteria.keep_criteria(run, [], "")
    assert len(applied_criteria.kept_criteria(run)["criteria"]) == 2
    extensions.use(())
    files, _, remarks = applied_criteria.judged_by(run, [], "")
    assert "burn_turned" in [check.name for check in criteria.load(files)]
    assert remarks == []


CRITERION = FILES["stages/burn/files/criteria.yml"]
FAILURES = FILES["stages/burn/files/failures.yml"]
RULES = FILES["stages/burn/files/coherence.yml"]
TRAITS = FILES["stages/burn/files/stage.yml"]


def own_class(stage, name):
    """Files of a stage with one class."""
    row = f"{{name: {name}, subject: node, action: part_slow}}"
    return {
        f"stages/{stage}/defaults/main.yml": f"{stage}_workload: {{command: [sync]}}\n",
        f"stages/{stage}/files/failures.yml": f"schema: gpuval.failures/1\ngroups: {{criteria: [{row}]}}\n",
    }


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"stages/burn/defaults/main.yml": None}, "/main.yml: there is no such file: declare burn_workload in it"),
        ({"stages/burn/defaults/main.yml": "burn_seconds: 1\n"}, "main.yml: no burn_workload: declare what the stage"),
        (
            {"stages/burn/defaults/main.yml": "burn_workload: {}\ntraining_seconds: 1\n"},
            "main.yml: training_seconds: settings of the stage begin with burn_: rename it",
        ),
        (
            {"stages/burn/files/failures.yml": FAILURES.replace("burn_turned", "training_*")},
            "failures.yml: class 'training_*': the name must begin with burn_: rename it",
        ),
        ({"profiles/night.yml": "schema: gpuval.profile/1\n"}, 'night.yml: "stages" is a required property'),
        (
            {"profiles/night.yml": "schema: gpuval.profile/1\ndepth: burn-in\nstages: [facts]\n"},
            "night.yml: depth: 'burn-in' is none of quick, standard, burnin, soak; is it burnin?",
        ),
        ({"profiles/night.yml": "schema: [\n"}, "night.yml:2: not YAML"),
        ({"stages/burn/defaults/main.yml": "burn_workload: [\n"}, "burn/defaults/main.yml:2: not YAML"),
        ({"stages/burn/meta/argument_specs.yml": "argument_specs: [\n"}, "meta/argument_specs.yml:2: not YAML"),
        ({"stages/burn/files/failures.yml": "schema: [\n"}, "files/failures.yml:2: not YAML"),
        ({"stages/burn/files/stage.yml": "- ]\n"}, "burn/files/stage.yml:1: not YAML"),
        (
            {"stages/burn/files/stage.yml": TRAITS.replace("{metrics: [burn_turns_count]", "{metrics: ['*']")},
            "burn/files/stage.yml: *: metrics of the stage begin with burn_: rename",
        ),
        (
            {"stages/burn/files/stage.yml": TRAITS.replace("gpus: none", "gpus: nothing")},
            "stage.yml: gpus: 'nothing' is none of work, memory, none",
        ),
        (
            {"stages/burn/files/failures.yml": FAILURES.replace("subject", "patterns: ['('], subject")},
            "failures.yml: patterns: '(': missing ), unterminated subpattern at position 0: correct it",
        ),
    ],
)
def test_a_file_that_no_stage_or_profile_can_have_is_named(write, changed, problem):
    write(changed)
    with pytest.raises(GpuvalError) as error:
        stages.variables("night")
        stage_traits.traits_of_stages()
        settings.declared()
        failure_classes.class_named("burn_turned")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ("burn_second: 1", "night.yml: burn_second: no setting of a stage; is it burn_seconds?"),
        ("gpuval_retries: 0", "night.yml: gpuval_retries: no setting of a stage"),
        ("burn_seconds: 5 min", "night.yml: burn_seconds 5 min: must be a number of seconds: write 300"),
        ("training_seconds: -1", "night.yml: training_seconds -1: must be at least 0"),
    ],
)
def test_a_profile_sets_what_stages_have(write, chosen, problem):
    write({"profiles/night.yml": f"schema: gpuval.profile/1\nstages: [facts]\nsettings: {{{chosen}}}\n"})
    (found,) = check_settings._problems_of_extensions()
    assert problem in found
    if not chosen.startswith("gpuval_"):
        write({"profiles/night.yml": f"schema: gpuval.profile/1\nstages: [facts]\ncpu_settings: {{{chosen}}}\n"})
        (found,) = check_settings._problems_of_extensions()
        assert problem in found


def test_a_profile_has_one_deadline_for_all_nodes(write):
    text = "schema: gpuval.profile/1\nstages: [facts]\ncpu_settings: {gpuval_deadline_seconds: 1}\n"
    write({"profiles/night.yml": text})
    with pytest.raises(SettingError, match=r"night.yml: .*gpuval_deadline_seconds"):
        stages.variables("night")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"stages/burn/files/failures.yml": FAILURES.replace("gpu_damage", "gpu_damaeg")},
            "gpuval_extensions: class 'burn_turned': no action gpu_damaeg; is it gpu_damage?",
        ),
        (own_class("disk", "disk_full"), "class 'disk_full': gpuval ships disk_full: rename the stage or scheduler"),
        (own_class("facts_gpu", "facts_gpu_*"), "class 'facts_gpu_*': gpuval ships facts_gpu_"),
        ({"stages/burn/files/coherence.yml": "rules: ]\n"}, "burn/files/coherence.yml:1: not YAML"),
        (
            {"stages/burn/files/coherence.yml": RULES.replace("low: 0.99", "stages: [training]")},
            "coherence.yml: rule 'burn_seconds_planned': stages: a stage has rules for itself: remove the key",
        ),
        ({"engines/crun.py": "class ("}, "engines/crun.py: SyntaxError: "),
        ({"schedulers/flux/__init__.py": "import absent_of_flux\n"}, "ModuleNotFoundError: No module named 'absent_of"),
    ],
)
def test_what_a_run_would_use_later_is_found_with_the_settings(write, changed, problem):
    write(changed)
    (found,) = check_settings._problems_of_extensions()
    assert problem in found


@pytest.mark.parametrize("part", ["stages", "gang_stages"])
def test_a_profile_names_stages_that_there_are(write, part):
    stages_of = {"stages": "[facts]", "gang_stages": "[]", part: "[brun]"}
    lines = "".join(f"{key}: {names}\n" for key, names in stages_of.items())
    write({"profiles/night.yml": f"schema: gpuval.profile/1\n{lines}"})
    chosen = {"gpuval_profile": "night"}
    known = {name: profile.stages for name, profile in stages.profiles().items()}
    assert settings.unknown_stages(chosen, known, chosen) == ["gpuval_profile night: no stage brun; is it burn?"]
    assert settings.unknown_stages(chosen, known, {**chosen, "brun_workload": {}}) == []


def test_a_stage_changes_no_check_of_one_that_ships(write):
    text = CRITERION.replace("burn_turned", "training_kernel_mce").replace("stage: burn", "stage: training_kernel")
    files = {name.replace("burn", "training_kernel"): text for name, text in FILES.items()}
    write({"stages/training_kernel/files/criteria.yml": text}, files)
    (found,) = criteria.problems_of_extensions()
    assert found.endswith("check 'training_kernel_mce': gpuval ships one by this name: rename it")


def test_a_stage_changes_no_setting_of_one_that_ships(write):
    text = "combined_load_max_workload: {}\ncombined_load_max_written_bytes: 1\n"
    write({"stages/combined_load_max/defaults/main.yml": text})
    with pytest.raises(SettingError, match=r"combined_load_max: combined_load_max_written_bytes: another stage has"):
        stages.variables("night")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "name: burn_turned",
            "name: training_speed",
            "check 'training_speed': the name must begin with burn_: rename it",
        ),
        ("stage: burn", "stage: brun", "no stage brun; is it burn?"),
        ("kind: min", "kind: mni", "is none of"),
    ],
)
def test_criteria_of_an_extension_judge_its_own_stage(write, old, new, problem):
    write({"stages/burn/files/criteria.yml": CRITERION.replace(old, new)})
    (found,) = criteria.problems_of_extensions()
    assert found.startswith("gpuval_extensions: ")
    assert problem in found


#: Prints as JSON all that a process sees of a stage; the arguments are the stage, and the folders of extensions.
SEEN = """
import dataclasses, json, sys
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions, stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.stage_traits import figures_of, traits_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data import ordinary_names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import coherence, criteria, plausible
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.entries import not_applicable
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.subjects import subject_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import failure_classes
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans, settings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import check_settings

stage, folders = sys.argv[1], sys.argv[2:]
extensions.use(folders)
host = {"gpuval_profile": "burnin", "gpuval_environment": {}, "gpuval_images": {}, "ansible_play_hosts_all": ["a", "b"]}
templar = Templar(loader=DataLoader(), variables=host)
values = stages.with_variables(templar, host)
command = templar.copy_with_new_env(available_variables=values).template(values[f"{stage}_workload"])
declared = settings.declared()
checks = [check for check in criteria.beside_shipped([]) if check.stage == stage]
print(json.dumps({
    "outside": stage in extensions.own("stages"),
    "shipped": stage in extensions.found("stages"),
    "problems": check_settings._problems_of_extensions(),
    "options": {name: option for name, option in declared.options.items() if name.startswith(f"{stage}_")},
    "defaults": {name: value for name, value in declared.defaults.items() if name.startswith(f"{stage}_")},
    "plan": plans.stage(stage, command, ["facts", "image", stage]),
    "checks": sorted(map(repr, checks)),
    "classes": {check.name: repr(failure_classes.class_named(check.name)) for check in checks},
    "ranges": {check.metric: repr(dataclasses.replace(plausible.range_of(check.metric), file="")) for check in checks},
    "traits": [figures_of([stage]), traits_of(stage).gpus, traits_of(stage).bounds],
    "rules": [rule.name for rule in coherence.rules() if stage in rule.stages],
    "wrong": settings.problems({f"{stage}_seconds": "-1"}),
    "tag": settings.unknown_tags([stage[:-1]]),
    "word": ordinary_names.is_ordinary(stage),
}, default=repr))
"""


@pytest.mark.parametrize(("stage", "rules"), [("rdma_rails", 0), ("storage", 16)])
def test_a_stage_that_ships_is_loaded_alike_from_outside(tmp_path, stage, rules):
    """Moved out of a copy of the collection into an extension it is what it is inside."""

    def seen(*folders):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        argv = [sys.executable, "-c", SEEN, stage, *map(str, folders)]
        done = subprocess.run(
            argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    fleet = tmp_path / "ansible_collections/gpuval/fleet"
    shutil.copytree(COLLECTION, fleet, ignore=shutil.ignore_patterns("__pycache__", "changelogs"))
    inside = seen()
    assert len(inside["rules"]) == rules
    (tmp_path / "site/stages").mkdir(parents=True)
    (fleet / "roles" / stage).rename(tmp_path / "site/stages" / stage)
    write_extension(tmp_path / "site", {})
    outside = seen(tmp_path / "site")
    assert outside == {**inside, "outside": True}
    assert outside["problems"] == []


def test_an_extension_that_is_broken_is_found_by_its_use(write):
    made = write()
    (made / "profiles/night.yml").chmod(0o666)
    extensions.folders.cache_clear()
    extensions.found.cache_clear()
    extensions.use([made])
    with pytest.raises(SettingError, match=r"night.yml: others can write it"):
        stages.profiles()
