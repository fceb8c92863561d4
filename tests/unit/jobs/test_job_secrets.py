"""Secrets of jobs: from settings to a step's variables, and nowhere else."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import document, stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import job_secrets, plans

from tests.kit import jobs
from tests.kit.planted_secrets import CommandLines, leaks, plant
from tests.kit.runner import stage

SAY = 'import json, os, base64; s = os.environ["HF_TOKEN"]; '
TOO_SHORT = "has fewer than 4 characters and could not be hidden in logs: use a longer one"


def place(node, name, values):
    """As a launch does."""
    file = node.files.secrets(name)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text(json.dumps(values))
    file.chmod(0o600)


def python(text):
    return ["python3", "-c", text]


def everything(root):
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


def test_a_secret_reaches_its_job_and_no_file(node, tmp_path):
    planted = {"HF_TOKEN": plant("token") + "\nsecond line"}
    place(node, "mine", planted)
    steps = [
        {
            "name": "slowly",
            "run": python(SAY + "[os.write(1, c.encode()) for c in s]"),
        },
        {"name": "forms", "run": python(SAY + "print(json.dumps(s), base64.b64encode(b'me:' + s.encode()))")},
        {"name": "is_there", "run": ["sh", "-c", 'set -x; test -n "$HF_TOKEN"; ls -A ..']},
        {"name": "curve", "run": python(SAY + "print('performance: 12.5', s)")},
        {
            "name": "result",
            "run": python(
                SAY + "r = dict(state='success', message='with ' + s, environment=dict(it=s)); "
                "open(os.environ['GPUVAL_RESULT_FILE'], 'w').write(json.dumps(r))"
            ),
        },
    ]
    with CommandLines() as lines:
        record, log = jobs.run(node, jobs.write(tmp_path, secrets=["HF_TOKEN"], steps=steps))
    assert record["state"] == "success", log
    assert "with ***" in record["message"] or "5 of 5 steps" in record["message"]
    assert log.count("***") >= 3
    assert "secrets.json" not in log
    assert leaks(planted, everything(node.files.root)) == []
    assert leaks(planted, lines.text) == []
    assert not node.files.secrets("mine").exists()


def test_the_message_of_a_job_that_fails_hides_it(node, tmp_path):
    planted = {"HF_TOKEN": plant("token")}
    place(node, "mine", planted)
    steps = [{"name": "work", "run": 'echo "no access for $HF_TOKEN"; exit 3'}]
    record, _log = jobs.run(node, jobs.write(tmp_path, secrets=["HF_TOKEN"], steps=steps))
    assert "no access for ***" in record["message"]
    assert leaks(planted, everything(node.files.root)) == []


@pytest.mark.parametrize("value", ["9123", "success", "work is done", "node", "seconds"])
def test_a_secret_that_is_part_of_a_figure_or_a_word_of_the_format_changes_neither(node, tmp_path, value):
    place(node, "mine", {"PIN": value})
    result = {
        "state": "success",
        "metrics": [{"name": "own_count", "value": 91234, "unit": "count", "scope": "node"}],
        "series": [{"name": "own_loss", "unit": "", "x_unit": "seconds", "scope": "rank:0", "x": [1], "y": [9123]}],
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    prints = "echo \"lowest=91234 5912 steps for $PIN\"; echo 'performance: 59123.5 steps'"
    steps = [
        {"name": "prints", "run": prints},
        {"name": "hands_over", "run": f'cp {tmp_path}/result.json "$GPUVAL_RESULT_FILE"'},
    ]
    patterns = [r"(?P<name>lowest)=(?P<value>\d+)", r" (?P<value>\d+) steps for"]
    results = {"patterns": [{"pattern": pattern, "name": "b"} for pattern in patterns]}
    path = jobs.write(tmp_path, secrets=["PIN"], steps=steps, results=results, stay_alive=1)
    record, log = jobs.run(node, path)
    assert record["state"] == "success", record["message"]
    found = {metric["name"]: metric["value"] for metric in record["metrics"]}
    assert found == found | {"lowest": 91234, "b": 5912, "mine": 59123.5, "own_count": 91234}
    assert "steps for ***" in log
    assert json.loads(node.files.result("series/mine").read_text())["series"][0]["y"] == [9123]


def test_no_part_of_a_secret_becomes_the_name_or_the_unit_of_a_figure(node, tmp_path):
    place(node, "mine", {"HF_TOKEN": "hf_apartofit"})
    steps = [{"name": "prints", "run": 'echo "of $HF_TOKEN: 12 $HF_TOKEN"'}]
    results = {"patterns": [{"pattern": r"_(?P<name>\w+): (?P<value>\d+) (?P<unit>\w{5})"}]}
    record, _log = jobs.run(node, jobs.write(tmp_path, secrets=["HF_TOKEN"], steps=steps, results=results))
    assert [(one["value"], one["unit"]) for one in record["metrics"]] == [(12, "")]
    assert b"apart" not in node.files.record("mine").read_bytes()


def test_names_of_users_are_shown(node, tmp_path):
    """They are parts of any text, of nodes' names for one."""
    values = {"HUB_USERNAME": "node", "HUB_PASSWORD": plant("password")}
    place(node, "mine", values)
    steps = [{"name": "prints", "run": 'echo "on node-1 as $HUB_USERNAME by $HUB_PASSWORD"'}]
    _record, log = jobs.run(node, jobs.write(tmp_path, secrets=list(values), steps=steps))
    assert "on node-1 as node by ***\n" in log


def test_other_stages_do_not_get_it_and_a_skipped_one_leaves_no_file(node):
    place(node, "later", {"HF_TOKEN": plant("token")})
    later = stage("later", needs=["a"], secrets=["HF_TOKEN"])
    node.put_plan(stage("a", 'echo "[$HF_TOKEN]"; ls -A; exit 1'), later)
    node.call("run")
    assert "[]" in node.log("a")
    assert node.states() == {"a": "crash", "later": "skipped"}
    assert not node.files.secrets("later").exists()


def test_a_job_without_its_secret_does_not_start(node, tmp_path):
    record, _log = jobs.run(node, jobs.write(tmp_path, secrets=["HF_TOKEN"]))
    assert record["state"] == "crash"
    assert record["message"] == "cannot start: secret HF_TOKEN is not on this node: validate again"


def test_clean_removes_what_a_killed_run_left(node):
    node.put_plan(stage("a"))
    place(node, "a", {"HF_TOKEN": plant("token")})
    node.call("clean")
    assert not node.files.root.exists()


def test_values_come_from_settings_a_file_or_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "credential.json"
    file.write_text('{\t"A": "from file", "HUB": {"username": "me", "password": "of file"}, "B": "shadowed"}')
    for name in ("A", "B", "C"):
        monkeypatch.setenv(name, "from environment")
    store = {"secrets": {"B": "from settings", "C": ""}, "secrets_file": str(file)}
    names = ["A", "B", "C", "HUB_USERNAME", "HUB_PASSWORD"]
    expected = ["from file", "from settings", "from environment", "me", "of file"]
    assert list(job_secrets.values(names, store).values()) == expected


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("", "has no value: set it in gpuval_secrets, gpuval_secrets_file or the controller's environment"),
        ("abc", TOO_SHORT),
        ("       ", TOO_SHORT),
        ("a\0bcd", "has a NUL or more than 32768 bytes"),
        ("long" * 10_000, "has a NUL or more than 32768 bytes"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(value, told, monkeypatch):
    monkeypatch.delenv("PIN", raising=False)
    with pytest.raises(job_secrets.SecretError, match=r"^secret PIN ") as refused:
        job_secrets.values(["PIN"], {"secrets": {"PIN": value}})
    assert told in str(refused.value)
    assert not value.strip() or value not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [("{s3cret: [s3cret", "holds no object"), ("- s3cret", "holds no object"), (None, "cannot be read")],
)
def test_a_file_that_is_none_is_refused_without_its_content(tmp_path, text, told):
    file = tmp_path / "secrets.yml"
    if text:
        file.write_text(text)
    with pytest.raises(job_secrets.SecretError) as refused:
        job_secrets.values(["A"], {"secrets_file": str(file)})
    assert told in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_job_names_secrets_and_no_plan_has_their_values(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    path = jobs.write(tmp_path, secrets=["HF_TOKEN"])
    declaration = stages.workloads([path])["mine"]
    made = plans.stage("mine", declaration, ["mine"])
    assert made["secrets"] == ["HF_TOKEN"]
    assert "hf_abcdefgh" not in json.dumps(made)
    assert stages.lacking([path], {}) == []
    monkeypatch.delenv("HF_TOKEN")
    (problem,) = stages.lacking([path], {})
    assert problem.startswith(f"gpuval_jobs: {path}: secret HF_TOKEN has no value")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"secrets": ["A"], "environment": {"A": "1"}}, "environment.A: is a secret of the job, too"),
        ({"secrets": ["GPUVAL_X"]}, "secrets[0]: gpuval sets GPUVAL_X itself"),
        ({"secrets": ["a-b"]}, "secrets[0]"),
    ],
)
def test_secrets_that_a_job_cannot_have(tmp_path, changes, told):
    _job, problems = document.examine(jobs.write(tmp_path, **changes))
    assert any(told in problem for problem in problems), problems


def test_other_stages_cannot_name_secrets():
    with pytest.raises(plans.PlanError, match="only jobs have secrets"):
        plans.stage("x", {"command": ["true"], "secrets": ["A"]}, ["x"])
