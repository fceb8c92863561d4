import math
import pickle

import numpy as np
import pytest
from gpuval_workloads.common.result import WorkloadFailure

torch = pytest.importorskip("torch")

from gpuval_workloads.training import data  # noqa: E402

PER_FILE = 7


@pytest.fixture(scope="module")
def batches():
    """Five files' worth of labels and images, as NumPy arrays of bytes."""
    random = np.random.default_rng(0)
    return [
        (random.integers(0, 10, PER_FILE), random.integers(0, 256, (PER_FILE, 3072), dtype=np.uint8)) for _ in range(5)
    ]


def write_binary(directory, batches):
    directory.mkdir()
    for number, (labels, images) in enumerate(batches, 1):
        records = np.concatenate([labels[:, None].astype(np.uint8), images], axis=1)
        (directory / f"data_batch_{number}.bin").write_bytes(records.tobytes())


def write_pickles(directory, batches, protocol=2):
    """As the data set has them: a dictionary with byte keys, pickled with protocol 2."""
    directory.mkdir()
    for number, (labels, images) in enumerate(batches, 1):
        content = {
            b"batch_label": f"training batch {number} of 5".encode(),
            b"labels": labels.tolist(),
            b"data": images,
            b"filenames": [b"a.png"] * PER_FILE,
        }
        (directory / f"data_batch_{number}").write_bytes(pickle.dumps(content, protocol=protocol))


WRITERS = {"cifar-10-batches-bin": write_binary, "cifar-10-batches-py": write_pickles}


@pytest.mark.parametrize("folder", sorted(WRITERS))
@pytest.mark.parametrize("inside", [True, False])
def test_reads_both_formats(tmp_path, batches, folder, inside):
    WRITERS[folder](tmp_path / folder, batches)
    shards = [data.cifar10(tmp_path if inside else tmp_path / folder, rank, 2) for rank in range(2)]
    images = np.concatenate([images for _, images in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for labels, _ in batches])
    for rank, shard in enumerate(shards):
        assert shard.source == f"CIFAR-10 ({folder})"
        assert np.array_equal(shard.inputs.numpy(), images[rank:34:2])
        assert np.array_equal(shard.targets.numpy(), labels[rank:34:2])


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_reads_what_old_and_new_numpy_pickled(tmp_path, batches, module):
    path = tmp_path / "batch"
    text = pickle.dumps({b"labels": batches[0][0].tolist(), b"data": batches[0][1]}, protocol=2)
    path.write_bytes(text.replace(b"numpy._core.multiarray", module))
    images, _ = data.read_pickle(path)
    assert np.array_equal(images.numpy().reshape(PER_FILE, -1), batches[0][1])


def test_reads_what_python_2_pickled(tmp_path):
    """Strings of Python 2 are what Python 3 calls bytes: SHORT_BINSTRING opcodes, as in the real files."""
    raw = bytes(range(256)) * 12
    text = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + len(raw).to_bytes(4, "little") + raw + b"tbU\x06labelsq\x08]q\x09K\x03au."
    )
    path = tmp_path / "data_batch_1"
    path.write_bytes(text)
    images, labels = data.read_pickle(path)
    assert images.numpy().tobytes() == raw
    assert labels.tolist() == [3]


class Malicious:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def test_a_malicious_pickle_runs_nothing(tmp_path):
    import os

    for number, content in enumerate(
        [
            Malicious(os.system, f"touch {tmp_path}/ran"),
            {b"labels": [1], b"data": Malicious(eval, f"open({str(tmp_path / 'ran')!r}, 'w')")},
            Malicious(getattr, "x", "upper"),
        ]
    ):
        path = tmp_path / f"batch{number}"
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(WorkloadFailure, match=r"it asks for \S+, which no CIFAR-10 file does"):
            data.read_pickle(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02}.",
        b"not a pickle",
        pickle.dumps({b"labels": [1], b"data": np.zeros((1, 5), np.uint8)}),
        pickle.dumps({b"labels": [1], b"data": np.zeros((1, 3072), np.float64)}),
        pickle.dumps({b"labels": [99], b"data": np.zeros((1, 3072), np.uint8)}),
        pickle.dumps({b"labels": [1, 2], b"data": np.zeros((1, 3072), np.uint8)}),
    ],
)
def test_torn_pickles_say_which_file(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(WorkloadFailure, match=r"data_batch_1.*unpack"):
        data.read_pickle(path)


@pytest.mark.parametrize("content", [b"", b"x" * 3072, bytes([10]) + bytes(3072)])
def test_torn_binaries_say_which_file(tmp_path, content):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(content)
    with pytest.raises(WorkloadFailure, match=r"data_batch_1\.bin.*unpack"):
        data.read_binary(path)


def test_missing_data_sets_and_files(tmp_path, batches):
    with pytest.raises(WorkloadFailure, match="holds neither"):
        data.cifar10(tmp_path, 0, 1)
    write_binary(tmp_path / "cifar-10-batches-bin", batches[:4])
    with pytest.raises(WorkloadFailure, match=r"data_batch_5\.bin cannot be read"):
        data.cifar10(tmp_path, 0, 1)


def test_an_epoch_shows_every_example_once_and_the_next_in_another_order():
    shard = data.Shard(torch.arange(20), torch.arange(20) * 2, "numbers")
    stream = shard.batches(4, seed=1)
    epochs = [torch.cat([next(stream)[0] for _ in range(5)]).tolist() for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]
    inputs, targets = next(stream)
    assert torch.equal(inputs * 2, targets)


def test_a_shard_smaller_than_a_batch_is_refused():
    with pytest.raises(WorkloadFailure, match="lower --batch-size"):
        data.Shard(torch.arange(3), torch.arange(3), "numbers").steps_per_epoch(4)


def test_the_text_is_one_chain_for_all_ranks_with_the_entropy_it_claims():
    shards = [data.markov_text(64, 128, 200, seed=5, rank=rank) for rank in range(2)]
    assert not torch.equal(shards[0].inputs, shards[1].inputs)
    assert torch.equal(shards[0].inputs[:, 1:], shards[0].targets[:, :-1])
    counts = torch.zeros(64, 64)
    for shard in shards:
        counts.index_put_((shard.inputs.flatten(), shard.targets.flatten()), torch.tensor(1.0), accumulate=True)
    assert (counts > 0).sum(dim=1).max() <= len(data.MARKOV_PROBABILITIES)
    share = counts / counts.sum()
    given = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    entropy = -float((share * given.clamp(min=1e-12).log()).sum())
    assert entropy == pytest.approx(data.MARKOV_ENTROPY, rel=0.05)  # followers drawn twice make it a little less
    assert entropy < math.log(64) / 3


def test_generated_images_show_their_class():
    shard = data.generated_images(400, seed=3, rank=0)
    assert (shard.inputs.dtype, tuple(shard.inputs.shape)) == (torch.uint8, (400, 3, 32, 32))
    images = shard.inputs.float().flatten(1)
    means = torch.stack([images[:200][shard.targets[:200] == label].mean(dim=0) for label in range(10)])
    nearest = torch.cdist(images[200:], means).argmin(dim=1)
    assert (nearest == shard.targets[200:]).float().mean() > 0.95
