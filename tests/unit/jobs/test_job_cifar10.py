"""The shipped job on CIFAR-10, on files made in its format."""

import importlib.util
import os
import pickle
import time

import numpy
import pytest

from tests.kit import jobs
from tests.kit.runner import Node

SCRIPT = jobs.SHIPPED / "cifar10_resnet18.py"
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def put_images(folder, per_batch):
    """Batches as the archive has them: a pickle of protocol 2; the brightness of an image is its label."""
    folder.mkdir(parents=True)
    noise = numpy.random.default_rng(1)
    for name in BATCHES:
        labels = noise.integers(0, 10, per_batch)
        data = (labels[:, None] * 25 + noise.integers(0, 20, (per_batch, 3072))).astype(numpy.uint8)
        batch = {b"batch_label": name.encode(), b"labels": labels.tolist(), b"data": data, b"filenames": []}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


@pytest.mark.slow
def test_the_job_trains_on_its_dataset(tmp_path):
    node = Node(tmp_path / "base", f"t{time.monotonic_ns()}")
    try:
        put_images(node.files.models / "datasets--gpuval--cifar10" / "cifar-10-batches-py", 64)
        small = {
            "CIFAR10_WIDTH": "4",
            "CIFAR10_BATCH": "32",
            "CIFAR10_EPOCHS": "3",
            "OMP_NUM_THREADS": "1",
        }
        text = (jobs.SHIPPED / "cifar10_resnet18.yml").read_text().replace("  CIFAR10_EPOCHS: 5\n", "  KEPT: 1\n")
        (tmp_path / SCRIPT.name).write_text(SCRIPT.read_text())
        path = jobs.write_text(tmp_path, text, "cifar10_resnet18.yml")
        record, log = jobs.run(node, path, environment=small, seconds=400)
    finally:
        node.close()
    assert record["state"] == "success", log
    figures = {metric["name"]: metric["value"] for metric in record["metrics"]}
    assert figures["cifar10_resnet18_samples_per_second"] > 0
    assert 0.1 < figures["cifar10_resnet18_accuracy_ratio"] <= 1
    assert 0 < figures["cifar10_resnet18_loss"] < 2.3


def test_a_batch_that_runs_code_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("cifar10_resnet18", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    put_images(tmp_path / "good", 4)
    images, labels = module.read(tmp_path / "good", BATCHES[:5], torch.device("cpu"))
    assert (images.shape, labels.shape) == ((20, 3, 32, 32), (20,))

    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "bad").write_bytes(pickle.dumps({b"data": Hostile()}))
    with pytest.raises(pickle.UnpicklingError, match="has no place in CIFAR-10"):
        module.read(tmp_path, ["bad"], torch.device("cpu"))
    assert not (tmp_path / "ran").exists()
