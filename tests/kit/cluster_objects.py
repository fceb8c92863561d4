"""Small objects of a run, for tests of what carries them."""

LABELS = {"app.kubernetes.io/name": "gpuval", "gpuval.io/run": "r1"}
SELECTOR = "gpuval.io/run=r1"


def config_map(name="one", labels=None, **data):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels or LABELS},
        "data": data,
    }


def job(name="job-1", node="node-001", stages=("facts", "training"), labels=None, **spec):
    containers = [{"name": stage, "image": "registry.test/work:1"} for stage in stages]
    labels = labels or LABELS
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": node},
        "initContainers": containers[:-1],
        "containers": containers[-1:],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {"backoffLimit": 0, **spec, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
