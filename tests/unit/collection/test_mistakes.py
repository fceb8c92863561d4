"""What an operator mistypes is found before anything starts, and named in words, with its place and what was meant."""

import json
import textwrap

import pytest
from ansible import context
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.utils.vars import load_extra_vars
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import settings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import check_settings

from tests.kit.actions import run_action, vars_of
from tests.kit.builders import SPEED

CHECK = textwrap.indent(SPEED, "  ")
CRITERIA = f"schema: gpuval.criteria/1\nchecks:\n{CHECK}"

#: A line of group_vars/all.yml, and what is printed of it behind its file and line.
SETTINGS = [
    # names
    ("gpuval_gpu_counts: 8", "gpuval_gpu_counts: no such setting; is it gpuval_gpu_count?"),
    ("training_secs: 60", "training_secs: no such setting; is it training_seconds?"),
    ("gpuvl_profile: quick", "gpuvl_profile: no such setting; is it gpuval_profile?"),
    ("vendor_tool_level: 2", "vendor_tool_level: no such setting; is it vendor_tools_level?"),
    ("network_vlan: 7", "network_vlan: no such setting. A variable of your own goes into gpuval_own_variables"),
    ("store_bucket: fleet", "store_bucket: no such setting."),
    ("ansible_usr: root", "ansible_usr: Ansible reads no such variable; is it ansible_user? One of your own goes into"),
    ("ansible_hosts: 192.0.2.1", "ansible_hosts: Ansible reads no such variable; is it ansible_host?"),
    ("ansible_ssh_prot: 22", "ansible_ssh_prot: Ansible reads no such variable; is it ansible_ssh_port?"),
    ("anisble_become: true", "anisble_become: Ansible reads no such variable; is it ansible_become?"),
    ("ansible-user: root", "ansible-user: Ansible reads no such variable; is it ansible_user?"),
    # words
    ("gpuval_sku: h20O", "gpuval_sku h20O: not in the catalogue; is it h200? A model of your own needs another name"),
    ("gpuval_sku: MI325Y", "gpuval_sku MI325Y: not in the catalogue; is it mi325x?"),
    ("gpuval_sku: nvida", "gpuval_sku nvida: not in the catalogue; is it nvidia?"),
    ("gpuval_profile: quik", "gpuval_profile quik: must be one of quick, standard, burnin, soak; is it quick?"),
    ("gpuval_profile: quik\ngpuval_stages: [facts]", "gpuval_profile quik: must be one of quick, standard, burnin,"),
    ("gpuval_runtime: dokcer", "gpuval_runtime dokcer: must be one of docker, podman, host, auto; is it docker?"),
    ("gpuval_network: infinband", "gpuval_network infinband: must be one of auto, infiniband,"),
    ("gpuval_stages: [facts, trainig]", "gpuval_stages: no stage trainig; is it training?"),
    ("gpuval_stages: [facts, loding]", "gpuval_stages: no stage loding; is it loading?"),
    ("gpuval_stages: [facts, inference]", "gpuval_stages: inference needs loading, which no stage before it"),
    ("gpuval_stages: [facts, inference, loading]", "inference needs loading, which no stage before it brings: move"),
    ("gpuval_profiles: {quick: [facts, memory]}", "declare another one by memory_workload"),
    ("bundle_without: [image]", "bundle_without ['image']: image is none of source, wheels,"),
    # types, ranges and durations
    ("kubernetes_controller: {imge: x}", "it has no imge; is it image?"),
    ("kubernetes_controller: [x]", "must be a mapping, such as {name: value}"),
    ("gpuval_retries: many", "gpuval_retries many: must be one of 0, 1"),
    ("gpuval_gpu_count: eight", "gpuval_gpu_count eight: must be a whole number"),
    ("gpuval_gpu_count: true", "gpuval_gpu_count True: must be a whole number"),
    ("gpuval_nic_rate: 400", "gpuval_nic_rate '400': write the rate of a port with its unit, such as 400 Gb/s"),
    ("gpuval_gpu_count: -8", "gpuval_gpu_count -8: must be at least 0"),
    ("gpuval_deadline_seconds: 2h", "gpuval_deadline_seconds 2h: must be a number of seconds: write 7200"),
    ("logs_seconds: 5 min", "logs_seconds 5 min: must be a whole number of seconds: write 300"),
    ("gpuval_deadline_seconds: -1", "gpuval_deadline_seconds -1: must be more than 0"),
    ("training_seconds: .nan", "training_seconds nan: must be a number"),
    ("gpuval_telemetry_seconds: 0", "gpuval_telemetry_seconds 0: must be 0.1 or more; gpuval_telemetry: false"),
    ("vendor_tools_level: 5", "vendor_tools_level 5: must be at least 1, at most 4"),
    ("storage_raw_devices: [/dev/sdb]", "storage_raw_devices: their content is destroyed: name the same in"),
    ("gpuval_store_port: 65535", "gpuval_store_port 65535: must be from 1 to 65534, or 0"),
    ("gpuval_telemetry: maybe", "gpuval_telemetry maybe: must be true or false"),
    ("gpuval_model: [tiny]", "gpuval_model ['tiny']: must be text"),
    ("gpuval_images: training", "gpuval_images training: must be a mapping, such as {name: value}"),
    ("gpuval_retries: '{{ none_such }}'", "gpuval_retries: its template fails, 'none_such' is undefined"),
    # what values mean
    ("gpuval_model: tniy", "gpuval_model: the model folder tniy does not exist on the controller"),
    ("gpuval_dataset: []", "gpuval_dataset: no such setting; is it gpuval_datasets?"),
    ("gpuval_stages: facts", """gpuval_stages facts: must be a list: -e '{"gpuval_stages": ["facts"]}'"""),
    ("gpuval_stages: 'facts, training'", """must be a list: -e '{"gpuval_stages": ["facts", "training"]}'"""),
    ("gpuval_datasets: cifar10", "gpuval_datasets cifar10: must be a list"),
    ("gpuval_datasets: [{name: a, sourc: /x}]", "gpuval_datasets[0]: unknown keys sourc; is it source?"),
    ("gpuval_datasets: [{name: a, source: /nowhere}]", "gpuval_datasets: a: /nowhere does not exist on the controller"),
    ("gpuval_endpoints: [{name: a, adress: 'x:1'}]", "gpuval_endpoints[0]: unknown keys adress; is it address?"),
    ("gpuval_endpoints: [{name: a, url: 's3.example.org/x'}]", "gpuval_endpoints[0]: the url (https://HOST/PATH)"),
    ("gpuval_endpoints: [{name: a, address: 'x:70000'}]", "gpuval_endpoints[0]: the address (HOST:PORT) cannot"),
    ("gpuval_endpoints: [{name: a, address: 'x:0'}]", "gpuval_endpoints[0]: "),
    ("gpuval_endpoints: [{name: a, url: 'http://x/', size: 5 ms}]", "gpuval_endpoints[0]: size 5 ms: must be a figure"),
    ("gpuval_endpoints: [{name: a, url: 'http://x/?sig=planted'}]", "gpuval_endpoints[0]: url has a user, password or"),
    ("gpuval_endpoints: [{name: a, url: 'http://u:planted@x/'}]", "gpuval_endpoints[0]: url has a user, password or"),
    ("gpuval_endpoints: [{name: a, url: 'http://x/', method: PUT}]", "gpuval_endpoints[0]: PUT needs a size"),
    ("gpuval_endpoints: [{name: a, url: 'http://x/', min_rate: 1 MB/s}]", "gpuval_endpoints[0]: min_rate needs a size"),
    ("gpuval_endpoints: [{name: a, url: 'http://x/', max_loss: 200 %}]", "gpuval_endpoints[0]: max_loss 200 %: must"),
    ("endpoints_seconds: 1000", "endpoints_seconds 1000: must be more than 0, at most 300"),
    ("gpuval_bucket: My_Bucket", "gpuval_bucket My_Bucket: must be 3 to 63 small letters"),
    ("gpuval_namespace: GPU val", "gpuval_namespace GPU val: must be up to 63 small letters"),
    ("gpuval_s3_endpoint: s3.example.org", "gpuval_s3_endpoint 's3.example.org' is no URL of an S3 service: write"),
    ("gpuval_s3_ca_file: /nowhere/ca.pem", "gpuval_s3_ca_file /nowhere/ca.pem: there is no such file"),
    (
        "gpuval_repairs: [{node: a, part: node, action: b, when: 2026-11-04, by: c}]",
        "each entry has node, part, action, at, by",
    ),
    (
        "gpuval_repairs: [{node: a, part: node, action: b, at: 2026-11-04 09:00, by: c}]",
        "gpuval_repairs: at: 2026-11-04 09:00 of a is no time such as 2026-11-04T09:00:00Z",
    ),
    ("gpuval_webhook_url: hooks.example.org/x", "gpuval_webhook_url is no URL: write https://HOST/PATH"),
    ("gpuval_webhook_url: https://hooks.example.org/caf\u00e9", "gpuval_webhook_url is no URL: write https://HOST/PATH"),
    ("gpuval_webhook_url: http://hooks.example.org/x", "gpuval_webhook_url leads to hooks.example.org without TLS"),
    ("gpuval_webhook_url: https://me:pw@hooks.example.org/x", "gpuval_webhook_url has a user or password: remove it"),
    ("gpuval_webhook_key: short", "gpuval_webhook_key has less than 16 characters: make one with `openssl"),
    ("gpuval_webook_url: https://hooks.example.org/x", "gpuval_webook_url: no such setting; is it gpuval_webhook_url?"),
    ("gpuval_results_dir: /dev/null/results", "gpuval_results_dir /dev/null/results: /dev/null is a file"),
    ("gpuval_folder: models/mine", "gpuval_folder 'models/mine': names of letters"),
    ("gpuval_runs_folder: models", "gpuval_runs_folder 'models': names of letters"),
    ("gpuval_baseline: site.json", "gpuval_baseline: site.json: cannot be read: No such file or directory; `make"),
    ("gpuval_versions: {drivr: '580'}", "gpuval_versions has the key 'drivr'; is it driver?"),
    ("gpuval_gang_stages: {standrad: [fabric]}", "gpuval_gang_stages: no profile standrad; is it standard?"),
    ("run_recurring_settings: {training_secnds: 9}", "no setting training_secnds; is it training_seconds?"),
    ("storage_floors: {sequental_read_p99_seconds: 1}", "no figure sequental_read_p99_seconds; is it sequential_read_"),
    ("storage_shared_floors: {speed: 5}", "storage_shared_floors: no figure speed; they are TEST_FIGURE of"),
    ("storage_floors: {mixed_p99_seconds: 5 ms}", "storage_floors: mixed_p99_seconds 5 ms: must be a number above 0"),
    ("storage_floors: {mixed_p99_seconds: [1]}", "storage_floors: mixed_p99_seconds [1]: must be a number above 0"),
    ("gpuval_labels: [r12]", "gpuval_labels ['r12']: must be a mapping, such as {name: value}"),
    ("gpuval_images: {training: {refrence: a:1}}", "unknown keys refrence; is it reference?"),
    ("gpuval_container: {shm_byte: 1}", "unknown keys shm_byte; is it shm_bytes?"),
    ("gpuval_pods: {imge: a:1}", "gpuval_pods: unknown key 'imge'; is it image?"),
    ("gpuval_gang_size: 1", "gpuval_gang_size 1: a gang has two nodes or more"),
    ("gpuval_jobs: [none.yml]", "none.yml: cannot be read: No such file or directory"),
    ("gpuval_jobs: {a: 1}", "gpuval_jobs {'a': 1}: must be a list"),
    ("gpuval_job_skip: [clone]", "gpuval_job_skip: no job has a step clone"),
]  # fmt: skip

#: A line of a file of criteria, what it becomes, and what is printed of it behind the file and the line of the check.
CRITERIA_MISTAKES = [
    ("stage: training", "stage: trainning", "check 'speed': no stage trainning; is it training?"),
    ("value: 10", "valeu: 10", "check 'speed': unknown key 'valeu'; is it value?"),
    ("kind: min", "kind: mn", "check 'speed': kind: 'mn' is none of min, max, within"),
    ("severity: required", "severity: requierd", "'requierd' is none of required, advisory; is it required?"),
    ("value: 10", "value: '10'", "check 'speed': value: \"10\" is not of type"),
    ("    remedy: look\n", "", "check 'speed': \"remedy\" is a required property"),
]


@pytest.fixture(scope="module")
def defaults():
    files = settings.ROLES.glob("*/defaults/main.yml")
    loaded = (DataLoader().load_from_file(str(file), trusted_as_template=True) for file in files)
    return {"run_opens": True, **{name: value for values in loaded for name, value in values.items()}}


@pytest.fixture
def checked(tmp_path, monkeypatch, defaults):
    """Check settings as a play does, given as the text of a file; a warning or failure is in the lines returned."""
    monkeypatch.chdir(tmp_path)

    def check(text, hosts=("gpu-1", "gpu-2"), of_node=lambda _node: {}, **task_vars):
        file = tmp_path / "all.yml"
        file.write_text(f"---\n{text}\n")
        given = DataLoader().load_from_file(str(file), trusted_as_template=True)
        values = {**defaults, **given, "ansible_play_hosts_all": list(hosts)}
        monkeypatch.setattr(check_settings, "values_of", lambda _action, node, _vars: {**values, **of_node(node)})
        monkeypatch.setattr(check_settings, "templar_of", lambda _action, v: Templar(loader=DataLoader(), variables=v))
        return run_action("check_settings", {}, task_vars={**vars_of({host: {} for host in hosts}), **task_vars})

    return check


@pytest.mark.parametrize(("line", "told"), SETTINGS)
def test_a_wrong_setting_is_named_with_its_place_before_anything_starts(checked, line, told):
    outcome = checked(line)
    assert outcome.failed
    message = outcome.result["msg"]
    assert message.startswith(f"nothing was started: all.yml:2: {line.partition(':')[0]}"), message
    assert told in message
    for noise in ("unable to convert", "<class", "Traceback", "has no attribute"):
        assert noise not in message


@pytest.mark.parametrize(("right", "wrong", "told"), CRITERIA_MISTAKES)
def test_a_wrong_check_is_named_with_its_file_and_line(checked, tmp_path, right, wrong, told):
    (tmp_path / "site.yml").write_text(CRITERIA.replace("name: speed", "name: first") + CHECK.replace(right, wrong))
    message = checked("gpuval_criteria: [site.yml]").result["msg"]
    assert message.startswith("nothing was started: all.yml:2: gpuval_criteria: site.yml:11: ")
    assert told in message


def test_a_wrong_row_of_the_cabling_plan_is_named_with_its_line(checked, tmp_path):
    plan = tmp_path / "cabling.csv"
    plan.write_text("node,port,switch,switch_port\ngpu-1,eth4,leaf1,1\n")
    assert not checked(f"gpuval_cabling_plan: {plan}").failed
    plan.write_text("node,port,switch,switch_port\ngpu-1,eth4,leaf1,1\ngpu-3,eth4,leaf1,2\n")
    told = "gpuval_cabling_plan: cabling.csv line 3: the inventory has no node gpu-3; is it gpu-"
    assert checked(f"gpuval_cabling_plan: {plan}").result["msg"].startswith(f"nothing was started: all.yml:2: {told}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CRITERIA + CHECK, "site.yml: check 'speed' stands twice"),
        (CRITERIA.replace("checks:", "chekcs:"), "site.yml: "),
        (CRITERIA + "  - {name: [\n", "site.yml:12: not YAML: "),
        (None, "site.yml: cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_file_of_criteria_is_named(checked, tmp_path, text, told):
    if text:
        (tmp_path / "site.yml").write_text(text)
    assert f"gpuval_criteria: {told}" in checked("gpuval_criteria: [site.yml]").result["msg"]


def test_all_problems_are_reported_together(checked, tmp_path):
    (tmp_path / "site.yml").write_text(
        CRITERIA.replace("kind: min", "kind: mn") + CHECK.replace("value: 10", "vaule: 1")
    )
    outcome = checked(
        "gpuval_criteria: [site.yml]\ngpuval_retries: many\ntraining_secs: 60", ansible_run_tags=["trainng", "mine"]
    )
    assert outcome.result["msg"] == "nothing was started: correct the 5 settings above"
    for told in (
        "site.yml:3: ",
        "site.yml:11: ",
        "all.yml:3: gpuval_retries",
        "all.yml:4: training_secs",
        "--tags trainng",
    ):
        assert sum(told in line for line in outcome.lines) == 1, outcome.lines


@pytest.mark.parametrize(
    ("agent", "connection", "named"), [("", "ssh", True), ("/run/agent", "ssh", False), ("", "local", False)]
)
def test_a_key_file_that_is_not_there_is_named_once_before_nodes_are_probed_and_never_refused(
    checked, tmp_path, monkeypatch, agent, connection, named
):
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    key = f"ansible_ssh_private_key_file: {tmp_path}/id"
    outcome = checked(f"{key}\nansible_connection: {connection}")
    assert not outcome.failed
    said = f"no such file {tmp_path}/id: give the file of the private key, unless ssh logs in by other means"
    assert outcome.lines == ([f"all.yml:2: ansible_ssh_private_key_file: {said}"] if named else [])


def test_a_mistyped_tag_to_skip_is_named(checked):
    outcome = checked("gpuval_retries: 1", ansible_skip_tags=["trainig", "mine"])
    assert outcome.result["msg"] == "nothing was started: --skip-tags trainig: no such stage; is it training?"
    assert not checked("gpuval_retries: 1", ansible_skip_tags=["training"]).failed


JOB = "schema: gpuval.job/1\nname: mine\nsteps:\n  - {name: clone, run: 'true'}\n"


def test_mistakes_in_jobs_are_named_with_the_setting_and_with_their_own_lines(checked, tmp_path):
    job = tmp_path / "mine.yml"
    job.write_text(JOB.replace("name: mine", "nmae: mine").replace("run:", "rnu:"))
    outcome = checked(f"gpuval_jobs: [{job}]")
    assert outcome.result["msg"] == "nothing was started: correct the 4 settings above"
    for told in (f"{job}:2: unknown key 'nmae'; is it name?", f"{job}:4: steps[0]: unknown key 'rnu'; is it run?"):
        assert sum(f"all.yml:2: gpuval_jobs: {told}" in line for line in outcome.lines) == 1, outcome.lines
    (tmp_path / "train.py").touch()
    job.write_text(f"{JOB}files: [trian.py]\nresults: {{output: [megatorn]}}\n")
    told = "\n".join(checked(f"gpuval_jobs: [{job}]").lines)
    assert f"{job}:5: files[0]: there is no file {tmp_path}/trian.py; is it train.py?" in told
    assert f"{job}:6: results.output: no reader is called 'megatorn'; is it megatron?" in told
    job.write_text(JOB)
    message = checked(f"gpuval_job_skip: [clnoe]\ngpuval_jobs: [{job}]").result["msg"]
    assert "all.yml:2: gpuval_job_skip: no job has a step clnoe; is it clone?" in message
    assert not checked(f"gpuval_job_force: clone\ngpuval_jobs: {job}").failed
    message = checked(f"gpuval_jobs: [{job}]\nmine_workload: {{command: [a]}}").result["msg"]
    assert "gpuval_jobs: mine is declared by mine_workload, too: rename one" in message
    job.write_text(JOB + "needs: [facts, trainnig]\n")
    message = checked(f"gpuval_jobs: [{job}]").result["msg"]
    assert f"gpuval_jobs: {job}: needs: no stage trainnig; is it training?" in message
    job.write_text(JOB + "nodes: gang\n")
    message = checked(f"gpuval_jobs: [{job}]\ngpuval_stages: [facts, mine]").result["msg"]
    assert "gpuval_stages: mine is a job of several nodes, which runs after the stages of each node" in message


def test_what_stages_and_jobs_need_is_brought_by_a_stage_before_them(checked, tmp_path):
    """All at once, for shipped stages, for stages of a site's own, and for jobs on one node and several."""
    for name, more in (("mine", ""), ("ours", "nodes: gang\n")):
        (tmp_path / f"{name}.yml").write_text(f"{JOB.replace('mine', name)}{more}needs: [facts, training]\n")
    given = (
        f"gpuval_stages: [facts, inference, odd]\ngpuval_jobs: [{tmp_path}/mine.yml, {tmp_path}/ours.yml]\n"
        "odd_workload: {command: [a], needs: [facts, rdma]}\n"
    )
    told = "\n".join(checked(given).lines)
    for name, need in (("inference", "loading"), ("odd", "rdma"), ("mine", "training"), ("ours", "training")):
        assert f"gpuval_stages: {name} needs {need}, which no stage before it brings: add {need}, or --skip-" in told, (
            told
        )
    assert not checked(given, ansible_skip_tags=["loading", "rdma", "training"]).failed
    assert not checked(given, ansible_run_tags=["facts"]).failed  # the opening of the run looks at what tags choose
    assert not checked(
        given.replace("[facts, inference, odd]", "[facts, loading, inference, training, rdma, odd]")
    ).failed


def test_a_secret_of_a_job_has_a_value_before_anything_starts(checked, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    job = tmp_path / "mine.yml"
    job.write_text(JOB + "secrets: [HF_TOKEN]\n")
    given = f"gpuval_jobs: [{job}]\n"
    message = checked(given).result["msg"]
    assert f"gpuval_jobs: {job}: secret HF_TOKEN has no value: set it in gpuval_secrets" in message
    for setting in ("gpuval_secrets: {HF_TOKEN: hf_abcdefgh}", "gpuval_hf_token: hf_abcdefgh"):
        assert not checked(given + setting).failed
    message = checked(given + "gpuval_secrets: {HF_TOKEN: abc}").result["msg"]
    assert "secret HF_TOKEN has fewer than 4 characters" in message
    (tmp_path / "secrets.json").write_text('{"HF_TOKEN": "hf_abcdefgh"')
    outcome = checked(given + f"gpuval_secrets_file: {tmp_path}/secrets.json")
    assert any("gpuval_secrets_file: " in line and "holds no object of names" in line for line in outcome.lines)
    assert "hf_abc" not in str(outcome)


def test_a_job_is_a_stage_for_criteria_and_lists_of_stages(checked, tmp_path):
    job = tmp_path / "mine.yml"
    job.write_text(JOB)
    (tmp_path / "site.yml").write_text(CRITERIA.replace("stage: training", "stage: mine").replace("training_t", "t"))
    given = f"gpuval_criteria: [site.yml]\ngpuval_jobs: [{job}]\ngpuval_stages: [facts, mine]"
    assert not checked(given).failed
    assert "no stage mine" in checked("gpuval_criteria: [site.yml]").result["msg"]


def test_a_folder_that_cannot_be_written_is_named(checked, tmp_path, monkeypatch):
    monkeypatch.setattr(settings.os, "access", lambda path, _mode: path != tmp_path)
    message = checked(f"gpuval_results_dir: {tmp_path}/results").result["msg"]
    assert f"results: {tmp_path} cannot be written: set it to a folder that you can write" in message


def test_an_extra_variable_without_a_value_is_named(checked):
    assert (
        checked("_raw_params: gpuval_profile quick").result["msg"].endswith("-e gpuval_profile quick: write NAME=VALUE")
    )


@pytest.mark.parametrize(
    "value",
    [5, 0, -1.5, True, "x", "a,b", "{}", "[1]", [], ["x"], [5], [None], [{}], {}, {"a": 1}, {"a": [1]}, {"a": {}}],
)
def test_no_value_of_any_setting_ends_in_a_traceback(checked, value):
    names = set(settings.declared().options) - {settings.OWN}
    outcome = checked("\n".join(f"{name}: {json.dumps(value)}" for name in sorted(names)))
    assert outcome.failed
    assert outcome.result["msg"].startswith("nothing was started: ")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("gpuval_sku: hgx200", "all.yml:2: gpuval_sku hgx200: not in the catalogue; is it h200?"),
        (
            "gpuval_criteria: [site.yml]",
            "check 'speed': no shipped check has the metric training_token_per_second; is it tr",
        ),
    ],
)
def test_what_may_be_meant_is_a_warning(checked, tmp_path, line, told):
    (tmp_path / "site.yml").write_text(CRITERIA.replace("tokens_per", "token_per"))
    outcome = checked(line)
    assert not outcome.failed
    assert len([text for text in outcome.lines if told in text]) == 1
    assert checked("gpuval_sku: hgx-h200\ngpuval_criteria: []").lines == []


def test_the_name_that_a_cluster_has_for_its_gpus_is_no_mistake_but_that_of_a_list_is(checked):
    def named(node):
        return {"gpuval_sku": "a100l"}

    outcome = checked("gpuval_placement: slurm", of_node=named)
    assert not outcome.failed
    assert [line for line in outcome.lines if "gpuval_sku a100l: not in the catalogue; is it a100?" in line]
    assert checked("gpuval_placement: ssh", of_node=named).failed
    assert checked("gpuval_placement: slurm\ngpuval_sku: a100l").failed


def test_a_file_is_read_once_however_many_nodes_name_it(checked, tmp_path, monkeypatch):
    (tmp_path / "site.yml").write_text(CRITERIA)
    read = []
    monkeypatch.setattr(check_settings.criteria, "problems_of", lambda path, _stages: read.append(path) or [])
    hosts = [f"gpu-{number}" for number in range(10)]
    outcome = checked("gpuval_criteria: [site.yml]", hosts, lambda node: {"gpuval_node_ids": {node: f"id-{node}"}})
    assert not outcome.failed
    assert len(read) == 1


def test_a_mistake_of_every_node_does_not_flood_the_console(checked):
    hosts = [f"gpu-{number}" for number in range(check_settings.MOST_LINES + 5)]
    outcome = checked("mine: 1", hosts, lambda node: {"gpuval_node_ids": {node: "no id"}})
    assert outcome.result["msg"] == f"nothing was started: correct the {len(hosts)} settings above"
    assert len(outcome.lines) == check_settings.MOST_LINES + 2
    assert outcome.lines[-1] == "  and 5 more"


def test_two_stores_are_refused_with_the_reason(checked):
    outcome = checked("gpuval_store_address: 192.0.2.1\ngpuval_s3_endpoint: https://s3.example.org")
    assert "all.yml:2: gpuval_store_address: only the embedded store uses it" in outcome.result["msg"]


def test_variables_of_a_site_pass_once_they_are_listed(checked):
    assert not checked("gpuval_own_variables: [network_vlan, store_*]\nnetwork_vlan: 7\nstore_rack: r1\nmine: 1").failed


def test_a_stage_of_ones_own_passes(checked):
    assert not checked(
        "gpuval_stages: [facts, memory]\nmemory_workload: {command: [memtest]}\nmodel: x\nrack: r1"
    ).failed


def test_a_webhook_needs_its_key(checked):
    outcome = checked("gpuval_webhook_url: https://hooks.example.org/t0ken")
    assert "nothing was started: gpuval_webhook_key is empty: set the key that signs" in outcome.result["msg"]
    key = "gpuval_webhook_key: 0123456789abcdef"
    assert not checked(f"gpuval_webhook_url: https://hooks.example.org/t0ken\n{key}").failed


def test_the_path_of_a_webhook_is_not_printed(checked):
    for url in ("http://hooks.example.org/t0ken", "[https://hooks.example.org/t0ken]", "https://:x/t0ken"):
        outcome = checked(f"gpuval_webhook_url: {url}")
        assert outcome.failed
        assert "t0ken" not in outcome.result["msg"]


def test_what_env_sets_is_checked_like_any_setting_and_named_with_its_line(checked, tmp_path):
    (tmp_path / ".env").touch(mode=0o600)
    (tmp_path / ".env").write_text("BUCKET=My_Bucket\nFOLDER=../up\nAWS_SECRET_ACCESS_KEY=sesame\nNODE_NAME=a/b\n")

    def check(text, hosts):
        magic = {"ansible_inventory_sources": [str(tmp_path / "all.yml")], "groups": {"all": hosts}}
        return checked(text, hosts, lambda _node: magic, **magic)

    outcome = check("mine: 1", ["gpu-1"])
    assert outcome.result["msg"] == "nothing was started: correct the 3 settings above"
    for words in (
        ".env:1: gpuval_bucket My_Bucket: must be",
        ".env:2: gpuval_runs_folder",
        ".env:4: gpuval_node_ids: the id 'a/b'",
    ):
        assert sum(words in line for line in outcome.lines) == 1, outcome.lines
    (tmp_path / ".env").write_text("BUCKET=My_Bucket\nAWS_SECRET_ACCESS_KEY=sesame\nNODE_NAME=a/b\nMODEL=tiny\n")
    outcome = check("gpuval_bucket: mine", ["gpu-1", "gpu-2"])
    assert not outcome.failed
    assert outcome.lines[0].startswith(".env:3: NODE_NAME is not used: the inventory has several nodes")
    places = "gpuval_model (.env:4), gpuval_bucket (.env:1, overridden), gpuval_s3_secret_key (.env:2)"
    assert outcome.lines[1] == f"settings from .env: {places}"
    assert "sesame" not in str(outcome)


def test_a_secret_is_not_printed(checked):
    message = checked("gpuval_s3_secret_key: {open: sesame}").result["msg"]
    assert "gpuval_s3_secret_key: must be text" in message
    assert "sesame" not in message


#: An inventory, as its files, and the one line that is printed for it.
INVENTORIES = [
    ({"hosts.yml": "all:\n  hosts:\n    a: {\n"}, "hosts.yml:4: not YAML: "),
    ({"hosts.yml": "all:\n\thosts:\n\t\ta:\n"}, "start any token: indent with spaces instead of"),
    ({"hosts.yml": "all:\n  hots:\n    a:\n"}, "hosts.yml:2: the group all has an unknown key hots; is it hosts?"),
    ({"hosts.yml": "all:\n  children:\n    x:\n      hosts: [a]\n"}, "hosts.yml:4: hosts of the group x must be"),
    ({"hosts.yml": "plugin: gpuval.fleet.nodelist\n"}, "unknown plugin gpuval.fleet.nodelist; is it gpuval.fleet.node"),
    ({"hosts.yml": "plugin: gpuval.fleet.node_list\npth: a.csv\n"}, "hosts.yml: unknown option pth; is it path?"),
    ({"hosts.yml": "plugin: gpuval.fleet.node_list\npath: a.csv\n"}, "a.csv cannot be read: No such file or directory"),
    ({"nodes.csv": "name,adress\na,192.0.2.1\n"}, "nodes.csv line 1: unknown column adress; is it address?"),
    ({"nodes.csv": "name,address\na,192.0.2.1\na,192.0.2.2\n"}, "nodes.csv: lines 2 and 3 have the same name a"),
    ({"nodes.csv": "name,address\nn[01:03],192.0.2.[1:2]\n"}, "nodes.csv line 2: address has 2 values for 3 name(s)"),
    ({"nodes.csv": "name,address,port\na,192.0.2.1,ssh\n"}, "nodes.csv line 2: the port 'ssh' is not a number"),
    ({"hosts.yml": "plugin: gpuval.fleet.kubernetes_nodes\nselectr: a=b\n"}, "unknown option selectr; is it selector?"),
    ({"hosts.yml": "all:\n  hosts:\n    a:\n", "group_vars/all.yml": "a: [\nb: 1\n"}, "all.yml:3: not YAML: "),
    ({"hosts.yml": "all:\n  hosts:\n    a: {x: 1}\n    a: {x: 2}\n"}, "hosts.yml:4: not YAML: the key 'a' stands tw"),
    ({"hosts.yml": "all: {hosts: {a: }}\n", "group_vars/all.yml": "a: 1\nb: !vault x\na: 2\n"}, "the key 'a' stands t"),
    ({"hosts.yml": "all: {hosts: {a: }}\n", "group_vars/all.yml": "a: {{ b }}\n"}, "quote a value that begins with {{"),
    ({"hosts": "[g]\na ansible_host=192.0.2.1\n[h]\na ansible_host=192.0.2.2\n"}, "hosts:4: a has ansible_host=192.0."),
    ({"nodes.csv": "name\nn[03-01]\n"}, "nodes.csv line 2: the range 'n[03-01]' is empty"),
    ({}, "inventory.yml: there is no such inventory: correct -i (with make: INVENTORY=PATH)"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "told"), INVENTORIES)
def test_a_wrong_inventory_ends_in_one_line(tmp_path, capsys, files, told):
    (tmp_path / "group_vars").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit) as ended:
        InventoryManager(loader=DataLoader(), sources=[str(tmp_path / next(iter(files), "inventory.yml"))])
    printed = capsys.readouterr()
    assert ended.value.code == 4
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert told in line
    assert line.startswith(f"[ERROR]: {tmp_path}/")


@pytest.mark.parametrize(
    ("given", "told"),
    [('{"gpuval_retries": ', "-e: YAML parsing failed"), ("@none.yml", "-e: Unable to retrieve file")],
)
def test_extra_variables_that_cannot_be_read_end_in_one_line(tmp_path, monkeypatch, capsys, given, told):
    (tmp_path / "hosts.yml").write_text("all:\n  hosts:\n    a:\n")
    monkeypatch.setattr(context, "CLIARGS", {"extra_vars": (given,)})
    monkeypatch.delattr(load_extra_vars, "extra_vars", raising=False)
    with pytest.raises(SystemExit):
        InventoryManager(loader=DataLoader(), sources=[str(tmp_path / "hosts.yml")])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"[ERROR]: {told}")
    assert ("A shell removes quotes: write -e '{" in line) == given.startswith("{")
