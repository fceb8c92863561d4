"""Settings of a multi-node stage: a training, or collectives, across the nodes of a gang."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

from ..common.arguments import positive_float, positive_int
from ..training.config import TrainingConfig as OneNode
from ..training.models.shapes import SIZES

#: What carries collectives between nodes: what NCCL chooses, the network alone, or NVLink alone.
AUTO, NETWORK, NVLINK = "auto", "network", "nvlink"
LAUNCHERS = ("torchrun", "deepspeed")
TOOLS = ("auto", "torch", "nccl-tests")
SMALLEST_BYTES = 8
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_receive")


@dataclass(frozen=True)
class GangConfig:
    """How a gang's ranks start: by torchrun on each node, or ``deepspeed`` over SSH; and the limit for joining."""

    launcher: str = "torchrun"
    join_seconds: float = 300.0


@dataclass(frozen=True)
class GangTrainingConfig(GangConfig):
    """Settings of a multi-node training. ``seconds``: of the ZeRO part; each of the two DDP parts takes a quarter."""

    zero: int = 2
    size: str = "auto"
    batch_size: int | None = None
    sequence_length: int | None = None
    seconds: float = 60.0
    precision: str = "auto"
    seed: int = 1234

    def of_one_node(self) -> OneNode:
        """Return the settings as those of a training on one node."""
        names = ("size", "batch_size", "sequence_length", "seconds", "precision", "seed")
        return OneNode(compile="never", **{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class CollectivesConfig(GangConfig):
    """Settings of collectives: all, or those in ``only``, at sizes up to ``most_bytes``; ``expect_network``: names in
    NCCL's log. ``tool`` auto: nccl-tests under MPI if every member has them, else torch. ``fabric`` nvlink: within the
    NVLink clique of this node; auto: the network between members with a clique, else what NCCL chooses."""

    seconds: float = 60.0
    only: tuple[str, ...] = ()
    most_bytes: int | None = None
    expect_network: tuple[str, ...] = ()
    tool: str = "auto"
    fabric: str = AUTO


#: The module that every rank runs, by type of settings.
RANKS = {GangTrainingConfig: "gpuval_workloads.gang.training", CollectivesConfig: "gpuval_workloads.gang.collectives"}


def largest_bytes(text: str) -> int:
    """Parse a largest message size in bytes. Raises ``ArgumentTypeError`` for less than the smallest size."""
    number = positive_int(text)
    if number < SMALLEST_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is less than {SMALLEST_BYTES} bytes, the smallest size")
    return number


def parse_arguments(arguments: Sequence[str]) -> GangTrainingConfig | CollectivesConfig:
    """Return the configuration of a command line; ends the program with exit code 2 when it makes no sense."""
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--launcher", choices=LAUNCHERS, default=GangConfig.launcher, help="deepspeed: over SSH from the leader")
    add("--join-seconds", type=positive_float, default=GangConfig.join_seconds, help="limit for all nodes to join")
    parser = argparse.ArgumentParser(
        prog="python -m gpuval_workloads.gang", description="Work of several nodes as one."
    )
    works = parser.add_subparsers(dest="work", required=True)

    description = "Train a Llama by DeepSpeed ZeRO, beside plain DDP on each node alone and across all."
    add = works.add_parser("training", parents=[common], description=description).add_argument
    stages = "1 optimizer, 2 gradients, 3 weights"
    add("--zero", type=int, choices=[1, 2, 3], default=GangTrainingConfig.zero, help=stages)
    add("--size", choices=["auto", *SIZES], default=GangTrainingConfig.size, help="auto: by the device's memory")
    add("--batch-size", type=positive_int, help="sequences per process and step")
    add("--sequence-length", type=positive_int, help="tokens per sequence")
    add("--seconds", type=positive_float, default=GangTrainingConfig.seconds, help="of ZeRO after its warm-up")
    kinds = ["auto", "bf16", "fp32"]
    add("--precision", choices=kinds, default=GangTrainingConfig.precision, help="auto: bf16 on GPUs")
    add("--seed", type=int, default=GangTrainingConfig.seed)

    description = "Measure collectives across the nodes, and check every element."
    add = works.add_parser("collectives", parents=[common], description=description).add_argument
    add("--seconds", type=positive_float, default=CollectivesConfig.seconds)
    add("--only", nargs="+", default=(), choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    add("--most-bytes", type=largest_bytes, help="largest message size, 8 or more")
    add("--expect-network", nargs="+", default=(), metavar="NAME", help="IB, Socket, ..., * for any text")
    add("--fabric", choices=[AUTO, NVLINK], default=AUTO, help="nvlink: over NVLink, within the clique of this node")
    add("--tool", choices=TOOLS, default=CollectivesConfig.tool, help="auto: nccl-tests under MPI, else torch")

    values = vars(parser.parse_args(list(arguments)))
    work = values.pop("work")
    if work == "training":
        return GangTrainingConfig(**values)
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    if fields["fabric"] == NVLINK:
        fields["expect_network"] = ()  # the setting describes the network, not NVLink
    return CollectivesConfig(**fields)


def template(name: str) -> Template:
    """Return a file of the folder ``templates`` beside this module, also if the package runs from a zip file."""
    return Template((files(__package__) / "templates" / name).read_text(encoding="utf-8"))
