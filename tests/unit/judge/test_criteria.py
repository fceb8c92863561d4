import textwrap

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.yaml_file import YamlError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.baseline import SETUPS
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import CriteriaError

from tests.kit.builders import SPEED

HEAD = "schema: gpuval.criteria/1\nchecks:\n"


def write(tmp_path, text, name="criteria.yml"):
    path = tmp_path / name
    path.write_text(HEAD + textwrap.indent(text, "  "))
    return path


def test_later_file_replaces_a_check_of_the_same_name(tmp_path):
    first = write(tmp_path, SPEED + SPEED.replace("speed", "other"), "a.yml")
    second = write(tmp_path, SPEED.replace("value: 10", "value: 20") + SPEED.replace("speed", "new"), "b.yml")
    checks = criteria.load([first, second])
    assert [(check.name, check.value) for check in checks] == [("speed", 20), ("other", 10), ("new", 10)]
    assert checks[0].required
    assert not checks[0].retry
    assert checks[0].scope == "node"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SPEED + "  colour: red\n", "check 'speed': .*colour"),
        (SPEED.replace("  value: 10\n", ""), "check 'speed': \"value\" is a required property"),
        (SPEED.replace("  stage: training\n", ""), "check 'speed': no stage"),
        (SPEED.replace("value: 10", "value: .inf"), "check 'speed': value: a number must be finite"),
        (SPEED.replace("value: 10", "value: 1e9"), 'check \'speed\': value: "1e9" is not of type "number"'),
        (SPEED.replace("kind: min", "kind: equal").replace("value: 10", "value: 1e9"), "1.0e\\+9"),
        (SPEED.replace("value: 10", "value: true"), "check 'speed': value"),
        (SPEED.replace("name: speed", "name: Speed!"), "check 'Speed!': name"),
        (SPEED.replace("kind: min", "kind: about"), "check 'speed': kind"),
        (SPEED.replace("kind: min", "kind: within").replace("value: 10", "low: 3\n  high: 2"), "low 3 is above high 2"),
        (SPEED + "  scope: rank\n", "needs parts_from"),
        (SPEED + "  requires: [speed]\n", "cannot require itself"),
        (SPEED + "  applies: {gpu_count: [eight]}\n", "gpu_count"),
        (SPEED + "  applies: {fingerprints: {nvls: on}}\n", "fingerprints"),
        (SPEED.replace("kind: min", "kind: same\n  peers: node"), "need a path with one list"),
        (SPEED.replace("kind: min", "kind: same\n  path: gpus[0].name"), "path"),
        (SPEED + SPEED, "check 'speed' stands twice"),
        (SPEED + "  value: 11\n", "'value' stands twice"),
        ("- just text\n", "check 'number 1'"),
        ("- name: [\n", "not YAML"),
    ],
)
def test_refusals_name_the_file_and_the_check(tmp_path, text, said):
    path = write(tmp_path, text)
    with pytest.raises((CriteriaError, YamlError), match=said) as caught:
        criteria.load([path])
    assert str(path) in str(caught.value)


def test_a_file_may_name_the_stage_of_its_checks_once(tmp_path):
    alone, other = (
        SPEED.replace("  stage: training\n", ""),
        SPEED.replace("speed", "other").replace("training", "loading"),
    )
    path = write(tmp_path, alone + other)
    path.write_text("stage: training\n" + path.read_text())
    assert [(check.name, check.stage) for check in criteria.load([path])] == [
        ("speed", "training"),
        ("other", "loading"),
    ]
    assert criteria.problems_of(path, ["training", "loading"]) == []


def test_missing_file_is_named(tmp_path):
    with pytest.raises(YamlError, match=r"nothing\.yml"):
        criteria.load([tmp_path / "nothing.yml"])


def test_what_is_informational_comes_with_the_checks(tmp_path):
    text = SPEED + "informational:\n- stage: training\n  metrics: [step_*]\n  reason: shown\n"
    path = tmp_path / "criteria.yml"
    path.write_text("schema: gpuval.criteria/1\nchecks:\n" + text)
    loaded = criteria.load([path])
    assert [(one.stage, one.metrics) for one in loaded.informational] == [("training", ("step_*",))]
    path.write_text("schema: gpuval.criteria/1\nchecks:\n" + text.replace("  reason: shown\n", ""))
    with pytest.raises(CriteriaError, match="reason"):
        criteria.load([path])


def test_yaml_never_makes_objects(tmp_path):
    path = write(tmp_path, "- !!python/object/apply:os.system [true]\n")
    with pytest.raises(YamlError, match="not YAML"):
        criteria.load([path])


def test_shipped_criteria_load_and_no_name_is_used_twice():
    files = criteria.shipped_files()
    names = [check.name for file in files for check in criteria.read_file(file)]
    assert len(names) == len(set(names))
    for check in criteria.load(files):
        if check.unit is not None and check.kind != "trend":
            assert units.compatible(check.unit, check.unit)


def test_a_baseline_knows_two_setups_and_no_others():
    entry = {
        "name": "slower", "stage": "training", "metric": "training_model_tflops", "kind": "baseline", "scope": "gpu",
        "unit": "TFLOP/s", "max_below": 0.05, "severity": "required", "source": "s", "remedy": "r",
    }  # fmt: skip
    for path in SETUPS:
        criteria.parse({"schema": "gpuval.criteria/1", "checks": [{**entry, "group_by": [path]}]})
    with pytest.raises(criteria.CriteriaError, match=r"slower.*group_by fingerprints\.setup: a baseline keeps"):
        criteria.parse({"schema": "gpuval.criteria/1", "checks": [{**entry, "group_by": ["fingerprints.setup"]}]})
