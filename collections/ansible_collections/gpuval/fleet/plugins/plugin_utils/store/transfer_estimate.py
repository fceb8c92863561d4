"""Whether the store can bring models and images to all nodes within the deadline: bytes x nodes / bandwidth."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes, human_rate

from ...module_utils.store import Store
from ..core.units import duration

#: Share of the deadline above which transfers leave too little time for the stages themselves.
LARGE_SHARE = 0.5
#: Speed that any network between controller and nodes exceeds: transfers that need less are not measured.
TRIVIAL_BITS_PER_SECOND = 1e6

MEASURE_SECONDS = 2.0
MEASURE_STREAMS = 4
MEASURE_PIECE_BYTES = 4 << 20

_HELP = (
    "Raise gpuval_deadline_seconds, put the store nearer to the nodes (gpuval_s3_endpoint), or have the model on them "
    "beforehand (gpuval_models_dir on a file system that they share)"
)


@dataclass(frozen=True)
class Bandwidth:
    """Bits per second that the store gives all nodes together, and the source of this figure."""

    bits_per_second: float
    source: str


def is_trivial(total_bytes: int, deadline_seconds: float) -> bool:
    """Whether any network transfers so many bytes within the deadline, so that its speed need not be measured."""
    return deadline_seconds <= 0 or 8 * total_bytes / deadline_seconds < TRIVIAL_BITS_PER_SECOND


def describe(nodes: int, bytes_per_node: int, deadline_seconds: float, bandwidth: Bandwidth | None) -> tuple[str, str]:
    """The estimate as a sentence, and a warning, empty if the deadline can be met. ``bytes_per_node`` is an upper
    bound: only the nodes know which data they already have."""
    total = nodes * bytes_per_node
    estimate = f"at most {human_bytes(bytes_per_node)} to each of {nodes} nodes, {human_bytes(total)} in all"
    if bandwidth is None:
        return estimate, ""
    seconds = 8 * total / bandwidth.bits_per_second
    estimate += f": {duration(seconds)} at {human_rate(bandwidth.bits_per_second / 8)} ({bandwidth.source})"
    if deadline_seconds <= 0 or seconds <= LARGE_SHARE * deadline_seconds:
        return estimate, ""
    verb = "cannot be transferred within" if seconds > deadline_seconds else "would use most of"
    return estimate, (
        f"models and images {verb} the deadline of {duration(deadline_seconds)}: {estimate}; nodes that have them "
        f"already need less. {_HELP}"
    )


def choose(declared: float, measured: float | None, interface: float | None) -> Bandwidth | None:
    """The declared bandwidth, unless it is 0; else the smaller of the measured one and the speed of the controller's
    interface. All in bits per second. None if nothing is known."""
    if declared > 0:
        return Bandwidth(declared, "gpuval_store_bits_per_second")
    sources = {"measured from the controller": measured, "speed of the controller's network interface": interface}
    candidates = [Bandwidth(speed, source) for source, speed in sources.items() if speed]
    return min(candidates, key=lambda bandwidth: bandwidth.bits_per_second, default=None)


def image_bytes(documents: Iterable[Mapping[str, Any]], references: Iterable[str]) -> int:
    """Total bytes of the archives of the images `references`. `documents`: descriptions of archives in the store,
    oldest first; the last of an image counts."""
    sizes: dict[str, int] = {}
    for document in documents:
        reference, count = document.get("reference"), document.get("bytes")
        if isinstance(reference, str) and isinstance(count, int) and count >= 0:
            sizes[reference] = count
    return sum(sizes.get(reference, 0) for reference in dict.fromkeys(references))


def measure(
    store: Store, objects: Sequence[tuple[str, int]], seconds: float = MEASURE_SECONDS, streams: int = MEASURE_STREAMS
) -> float | None:
    """Measure the store's speed in bits per second: read objects (key, size in bytes) in parallel streams for
    `seconds`. None if there is nothing to read. Raises StoreError."""
    pieces = [
        (key, start, min(start + MEASURE_PIECE_BYTES, size))
        for key, size in sorted(objects, key=lambda entry: -entry[1])
        for start in range(0, size, MEASURE_PIECE_BYTES)
    ][: streams * 1024]
    if not pieces:
        return None
    guard, state = threading.Lock(), {"next": 0, "bytes": 0}
    began = time.monotonic()
    deadline = began + seconds

    def read() -> None:
        while time.monotonic() < deadline:
            with guard:
                key, start, end = pieces[state["next"] % len(pieces)]
                state["next"] += 1
            count = len(store.get_range(key, start, end))
            with guard:
                state["bytes"] += count

    with ThreadPoolExecutor(streams) as pool:
        for future in [pool.submit(read) for _stream in range(streams)]:
            future.result()
    spent = time.monotonic() - began
    return 8 * state["bytes"] / spent if state["bytes"] else None
