"""What is particular to a stage stands in its folder: which other files of the product name one that ships, and why."""

import ast
import re
from fnmatch import fnmatchcase
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions

FLEET = Path(__file__).resolve().parents[3] / "collections/ansible_collections/gpuval/fleet"
NAMES = sorted(extensions.found("stages"), key=len, reverse=True)
#: A stage, or a metric, setting or variable of one.
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(NAMES)})(?:_[a-z0-9_]+)?(?![\w./-])")
#: Words that are the name of a stage, or begin with one, and stand for something else.
OTHER_WORDS = re.compile(
    r"image|image_(?:id|name|denied|not_found|pull\w*|refused|without_python|archive|load|build)\w*"  # of containers
    r"|fabric|fabric_(?:state|status|clique\w*|cluster_uuid|guid|health|problem|joined_count|not_ready)"  # of a GPU
    r"|storage|storage_class|storage_slow|rdma|rdma_(?:port|device)|fingerprint_group"  # of clusters, NICs
    r"|deepspeed_script\w*|training_(?:precision|log)|collective_library"  # of jobs, MAD, logs, versions
)
#: Files of the product that name stages, by pattern, and the reason. What is not here belongs into a stage's folder.
EXCEPTIONS = {
    # The order of work: what a node is, its images, its models come before all else.
    "node/gpuval_runner/*": "facts, image and endpoints are programs of the runner",
    "plugins/plugin_utils/jobs/stages.py": "a job follows the facts and its images, which have names of shipped ones",
    "plugins/plugin_utils/runs/plans.py": "facts, image and loading are steps of any plan",
    "plugins/plugin_utils/records/evidence.py": "facts and image never run in a container",
    "plugins/plugin_utils/artifacts/*": "trials of images, and files of the measurement between nodes",
    # What a node is, it says in its facts.
    **dict.fromkeys(
        (
            "plugins/plugin_utils/delivery/*.py",
            "plugins/plugin_utils/evidence_bundle/derived.py",
            "plugins/plugin_utils/gang/orchestrate.py",
            "plugins/plugin_utils/records/properties.py",  # also which stages are over NVLink
            "plugins/plugin_utils/report/models.py",
            "plugins/plugin_utils/report/summary.py",
            "plugins/plugin_utils/report/page/assets/acceptance.html.j2",
            "plugins/plugin_utils/runs/earlier_faults.py",
            "skus/shared/properties.yml",
        ),
        "the facts say what a node is",
    ),
    # The search for a bad node or link is more than a stage.
    "plugins/plugin_utils/gang/*.py": "the controller makes the record of a search itself",
    "plugins/plugin_utils/judge/entries.py": "figures of a search are of the run, not of the node with the record",
    "plugins/plugin_utils/runs/folder.py": "a message about a search names its setting",
    # Code, not a table.
    "plugins/plugin_utils/judge/expected_fingerprints.py": "setups follow from arguments, by code of the workloads",
    "plugins/plugin_utils/judge/coherence.py": "FLOPs follow from the setup of a training, by code of the workload",
    "plugins/plugin_utils/judge/*baseline.py": "baselines keep apart what was trained differently",
    "plugins/plugin_utils/judge/subjects.py": "the precisions of a SKU are those of its floors",
    "plugins/plugin_utils/steps/check_settings.py": "raw devices are confirmed, floors parsed by the workload",
    "plugins/plugin_utils/report/cluster_test.py": "gpuval.cluster_test/1 has the processes of a training",
    # Other subjects with the same words.
    "plugins/plugin_utils/ssh/findings.py": "the fingerprint of a host key",
    "plugins/plugin_utils/watch/launch_inputs.py": "the fingerprint of a host key",
    "plugins/plugin_utils/network/*.py": "endpoints of the site",
    "plugins/plugin_utils/mad/context.py": "DeepSpeed's launcher",
    "plugins/module_utils/node_steps/*.py": "packages of Python; endpoints of the site",
    "plugins/module_utils/store.py": "files of botocore",
    "plugins/plugin_utils/report/page/assets/report.html.j2": "an attribute of HTML",
    "roles/gpuval/defaults/main.yml": "endpoints of the site",
    "roles/network/tasks/probe.yml": "endpoints of the site",
    "plugins/module_utils/root_causes.json": "words of logs",
    "outputs/programs.yml": "programs",
    "jobs/*": "programs and images",
    "galaxy.yml": "tags of the collection",
    # Lists of stages whose subject is the list.
    "profiles/*.yml": "a profile is a list of stages with settings",
    "playbooks/*.yml": "a playbook runs certain stages",
    "roles/run/defaults/main.yml": "loading for datasets, endpoints on pods, stages of a search",
    "roles/run/files/criteria_telemetry.yml": "which stages must have the telemetry that all have",
    "skus/shared/acceptance.yml": "what an acceptance needs, whatever stages there are",
    "skus/shared/checks.yml": "what checks of SKUs have in common",
    "skus/shared/coherence.yml": "rules about several stages",
    "skus/*.yml": "all figures of a GPU model",
    "failures/stages.yml": "a remedy names a setting",
    # Examples.
    "roles/*/meta/argument_specs.yml": "examples",
    "plugins/modules/metrics_facts.py": "an example",
    "schemas/*.json": "examples, and fields of these names",
}


def texts_of(path):
    """The texts of a file in which a name counts: constants of Python without docstrings; lines without comments."""
    if path.suffix != ".py":
        lines = (line.split(" #")[0] for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
        return [word for line in lines for word in NAMED.findall(line)]
    tree = ast.parse(path.read_text())
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    docstrings = {body[0].value for body in bodies if body and isinstance(body[0], ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in docstrings)
    texts = [node.value for node in constants if isinstance(node.value, str)]
    # In prose a bare name is a word.
    return [word for text in texts for word in NAMED.findall(text) if word == text or word not in NAMES]


def test_only_the_folder_of_a_stage_names_it_but_for_what_is_listed():
    named = {}
    own = tuple(f"roles/{name}/" for name in NAMES)
    for path in sorted(FLEET.rglob("*")):
        name = path.relative_to(FLEET).as_posix()
        if name.startswith((*own, "node/gpuval_workloads/", "node/gpuval_node/", "changelogs/", "tests/")):
            continue
        if path.is_file() and path.suffix in (".py", ".yml", ".json", ".j2"):
            words = {word for word in texts_of(path) if not OTHER_WORDS.fullmatch(word)}
            if words:
                named[name] = sorted(words)
    unlisted = {
        name: words for name, words in named.items() if not any(fnmatchcase(name, entry) for entry in EXCEPTIONS)
    }
    assert unlisted == {}
    assert [entry for entry in EXCEPTIONS if not any(fnmatchcase(name, entry) for name in named)] == []
