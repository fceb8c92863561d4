"""Additional context as users write and mistype it."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import context
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.documents import MadError

WHOLE = {
    "gpu_vendor": "AMD",
    "guest_os": "UBUNTU",
    "docker_env_vars": {"MAX_TOKENS": 512, "MAD_MODEL_BATCH_SIZE": 8},
    "docker_build_arg": {"BASE_DOCKER": "rocm/base:2"},
    "docker_mounts": {"/inside": "/srv/outside"},
    "docker_gpus": "0,2-4",
    "docker_cpus": "0-3, 8",
    "MAD_CONTAINER_IMAGE": "registry.example.com/team/image:1",
    "SHM_SIZE": "16G",
    "timeout_multiplier": 1.5,
    "model_args": "--short",
    "pre_scripts": [{"path": "scripts/common/prepare.sh", "args": "-v"}],
    "post_scripts": [{"path": "scripts/common/tidy.sh"}],
    "tools": [{"name": "profiler", "cmd": "profile --all", "env_vars": {"LEVEL": 2}}],
    "distributed": {"launcher": "torchrun", "nnodes": 1, "nproc_per_node": 8},
    "cluster": "north",
}


def test_every_key():
    found = context.parse(WHOLE)
    assert found.environment == {"MAX_TOKENS": "512", "MAD_MODEL_BATCH_SIZE": "8", "LEVEL": "2"}
    assert (found.gpus, found.cpus, found.shm_bytes) == ((0, 2, 3, 4), "0-3,8", 16 << 30)
    assert found.facts == {"gpu_vendor": "AMD", "guest_os": "UBUNTU", "cluster": "north"}
    assert found.pre_scripts == ({"path": "scripts/common/prepare.sh", "args": "-v"},)
    assert found.tools == "profile --all"
    assert found.distributed == context.Distributed("torchrun", 8)
    assert (found.timeout_multiplier, found.model_args) == (1.5, "--short")
    assert found.volumes == ("/srv/outside:/inside",)
    assert found.remarks == ("gpuval_mad_context: 'cluster' is unknown: it is only compared with # CONTEXT",)


@pytest.mark.parametrize("given", ["{'docker_gpus': '1'}", '{"docker_gpus": "1"}', {"docker_gpus": "1"}])
def test_a_mapping_json_and_a_python_literal_are_one(given):
    assert context.parse(given).gpus == (1,)


@pytest.mark.parametrize("given", ["", " ", None, {}])
def test_nothing_is_nothing(given):
    assert context.parse(given) == context.MadContext()


def test_a_mistyped_key_is_remarked():
    assert "; is it docker_mounts?" in context.parse({"docker_mount": {}}).remarks[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{'a': __import__('os')}", "malformed JSON"),
        ("[1]", "is no object of names and values"),
        ('{"docker_gpus": "1",}x', "malformed JSON"),
        ({"docker_gpus": "1-"}, "gpuval_mad_context: docker_gpus"),
        ({"docker_gpus": "4-2"}, "docker_gpus: '4-2' runs backwards: write 2-4"),
        ({"docker_gpus": 3}, "gpuval_mad_context: docker_gpus"),
        ({"docker_cpus": "all"}, "gpuval_mad_context: docker_cpus"),
        ({"docker_mounts": {"inside": "/srv"}}, "gpuval_mad_context: docker_mounts"),
        ({"docker_mounts": {"/inside": "/srv:/etc"}}, "gpuval_mad_context: docker_mounts"),
        ({"docker_env_vars": {"A B": "1"}}, "gpuval_mad_context: docker_env_vars"),
        ({"docker_env_vars": {"A": ["1"]}}, "gpuval_mad_context: docker_env_vars.A"),
        ({"docker_env_vars": ["A=1"]}, "gpuval_mad_context: docker_env_vars"),
        ({"timeout_multiplier": 0}, "gpuval_mad_context: timeout_multiplier"),
        ({"model_args": "'"}, 'gpuval_mad_context: model_args: "\'": no closing quotation'),
        ({"pre_scripts": [{"path": "../x"}]}, "gpuval_mad_context: pre_scripts: '../x' is outside"),
        ({"pre_scripts": [{"pth": "x"}]}, "gpuval_mad_context: pre_scripts[0]"),
        ({"distributed": {"launcher": "torchrn"}}, "distributed.launcher: 'torchrn' is not known; is it torchrun?"),
        ({"distributed": {"launcher": "torchrun", "nnodes": 0}}, "gpuval_mad_context: distributed.nnodes"),
        ({"distributed": {"nnodes": 2}}, "gpuval_mad_context: distributed"),
        ({"gpu_vendor": "amd"}, "gpuval_mad_context: gpu_vendor: 'amd' is none of AMD, NVIDIA, GAUDI, CPU"),
        ({"MAD_CONTAINER_IMAGE": "-v /:/host"}, "gpuval_mad_context: MAD_CONTAINER_IMAGE"),
        ({"tools": [{"name": "rocprof"}]}, "tools: rocprof has neither cmd nor env_vars: give its command as cmd"),
        ({"SHM_SIZE": "lots"}, "gpuval_mad_context: SHM_SIZE"),
    ],
)
def test_what_is_mistyped_is_named(given, message):
    with pytest.raises(MadError) as caught:
        context.parse(given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "MAD_SECRETS_HFTOKEN", "WANDB_API_KEY", "db_password", "AWS_SECRET_ACCESS_KEY"]
)
@pytest.mark.parametrize("place", ["docker_env_vars", "docker_build_arg", "tools"])
def test_secrets_are_refused_without_their_value(name, place):
    given = {name: "hf_0123456789"}
    with pytest.raises(MadError, match=f"{name} reads like a secret") as caught:
        context.parse({place: [{"name": "x", "env_vars": given}] if place == "tools" else given})
    assert "hf_0123456789" not in str(caught.value)


def test_a_secret_with_an_empty_value_is_one_of_the_jobs():
    found = context.parse({"docker_env_vars": {"HF_TOKEN": "", "EMPTY": "", "A": 1}})
    assert found.secrets == ("HF_TOKEN",)
    assert found.environment == {"EMPTY": "", "A": "1"}
    with pytest.raises(MadError, match=r"docker_build_arg: HF_TOKEN reads like a secret.*leave it out of builds"):
        context.parse({"docker_build_arg": {"HF_TOKEN": ""}})


@pytest.mark.parametrize("name", ["MONKEY", "KEYBOARD", "NCCL_DEBUG", "BATCH_SIZE", "MAX_TOKENS", "TOKENIZER"])
def test_other_variables_are_the_containers(name):
    assert context.parse({"docker_env_vars": {name: 1}}).environment == {name: "1"}


def test_several_nodes_have_a_runner_of_their_own():
    found = context.parse({"distributed": {"launcher": "torchrun", "nnodes": 2, "master_port": 1234}}).distributed
    assert (found.nodes, found.port, found.is_gang) == (2, 1234, True)
    assert "--node_rank=$NODE_RANK" in found.runner and "--standalone" not in found.runner
    assert not context.parse({"distributed": {"launcher": "torchrun"}}).distributed.is_gang
