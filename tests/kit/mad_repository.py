"""A model repository with every feature that repositories of the MAD kind have, written for the tests."""

import json
from pathlib import Path

SECRET = "s3cr3t-t0ken-of-the-tests"
OTHER_SECRET = "an0ther-key-of-the-tests"

MODELS = [
    {
        "name": "tiny_train",
        "dockerfile": "docker/tiny",
        "scripts": "scripts/tiny_train",
        "n_gpus": "-1",
        "owner": "owner@example.com",
        "training_precision": "fp16",
        "tags": ["pyt", "tiny"],
        "args": "--epochs 2",
    },
    {
        "name": "tiny_infer",
        "dockerfile": "docker/tiny",
        "scripts": "scripts/tiny_infer/infer.py",
        "n_gpus": 1,
        "tags": "pyt, inference",
        "timeout": 60,
        "team": "vision",
    },
    {
        "name": "tiny_multi",
        "dockerfile": "docker/plain",
        "scripts": "scripts/tiny_multi/run.sh",
        "n_gpus": "2",
        "tags": ["multi"],
        "timeout": 0,
        "multiple_results": "perf_tiny.csv",
        "skip_gpu_arch": "gfx908, H100",
    },
    {
        "name": "tiny_data",
        "dockerfile": "docker/plain",
        "scripts": "scripts/tiny_multi/run.sh",
        "data": "images,generated",
        "cred": "TINY_HUB",
        "url": "https://git.example.com/team/tiny-net.git",
        "timeout": -1,
        "tags": ["data"],
    },
    {
        "name": "tiny_gang",
        "dockerfile": "docker/plain",
        "scripts": "scripts/tiny_multi/run.sh",
        "tags": ["gang"],
        "distributed": {"launcher": "torchrun", "nnodes": 2, "nproc_per_node": 8},
    },
]
SCOPED = [
    {
        "name": "chat",
        "dockerfile": "docker/chat",
        "scripts": "run.sh",
        "dockercontext": "scripts/extra",
        "tags": ["inference"],
    }
]
DATA = {
    "images": {"aws": {"path": "s3://bucket/images"}, "local": {"path": "/srv/images"}},
    "generated": {"custom": {"path": "scripts/data/make.sh", "args": "--size 3", "home": "/made"}},
    "tables": {"minio": {"path": "s3://bucket/tables", "mirrorlocal": "/srv/mirror"}},
    "hub": {},
    "shelf": {"nas": {"path": "/volume/shelf"}},
}
CREDENTIALS = {
    "TINY_HUB": {"username": "reader", "password": SECRET},
    "MAD_MINIO": {"USERNAME": "minio", "PASSWORD": OTHER_SECRET, "MINIO_ENDPOINT": "http://127.0.0.1:9000"},
    "NAS_NODES": [{"NAME": "shelf", "HOST": "nas.example.com", "PASSWORD": OTHER_SECRET}],
}
AMD = "# CONTEXT {'gpu_vendor': 'AMD', 'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=rocm/base:1\nFROM $BASE_DOCKER\n"
NVIDIA = "# CONTEXT {'gpu_vendor': 'NVIDIA', 'guest_os': 'CENTOS'}\nARG BASE_DOCKER=cuda/base:2\nFROM $BASE_DOCKER\n"
PLAIN = "FROM debian:13\n"
TRAIN = 'echo "model $MAD_MODEL_NAME on $MAD_RUNTIME_NGPUS GPUs: $*"\necho "performance: 12.5 examples/sec"\n'
MULTI = 'printf "model,performance,metric,batch\\na,10,tokens/s,1\\nb,,tokens/s,8\\n" > "$MAD_OUTPUT_CSV"\n'

FILES = {
    "models.json": json.dumps(MODELS, indent=2),
    "data.json": json.dumps(DATA),
    "credential.json": json.dumps(CREDENTIALS),
    "docker/tiny.ubuntu.amd.Dockerfile": AMD,
    "docker/tiny.centos.nvidia.Dockerfile": NVIDIA,
    "docker/plain.Dockerfile": PLAIN,
    "scripts/tiny_train/run.sh": TRAIN,
    "scripts/tiny_infer/infer.py": "print('performance: 3 images/s')\n",
    "scripts/tiny_multi/run.sh": MULTI,
    "scripts/data/make.sh": "echo made > data.txt\n",
    "scripts/extra/models.json": json.dumps(SCOPED),
    "scripts/extra/run.sh": TRAIN,
    "scripts/extra/docker/chat.Dockerfile": PLAIN,
    "scripts/programmed/get_models_json.py": "raise SystemExit('executed')\n",
    ".git/config": "",
}


def write(root: Path, **changed: object) -> Path:
    """The repository below `root`. A change is a file's text, bytes, or document for JSON; None leaves the file out."""
    for name, text in {**FILES, **changed}.items():
        if text is None:
            continue
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text if isinstance(text, str | bytes) else json.dumps(text)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def model(**fields: object) -> dict[str, object]:
    """An entry of models.json."""
    return {**MODELS[0], **fields}
