"""How many healthy racks and their trays fail, lack evidence or are warned about, and which faults of racks are named.

    python benchmarks/detection/racks.py --racks 1000
    python benchmarks/detection/racks.py --racks 0 --faults 5    # each fault in five drawn racks

Racks and faults are those of the laboratory (tests/kit/rack_lab): outputs of trays, read by the product's parsers.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "collections/ansible_collections/gpuval/fleet"
sys.path[:0] = [str(ROOT / "collections"), str(ROOT), str(COLLECTION / "node")]

from tests.kit.rack_lab.laboratory import FAULTS, RACKS, STAGES, Laboratory, racks_of, stages_of
from tests.kit.rack_lab.naming import named_by, statements


def draw_healthy(count: int, stages: tuple[str, ...], folder: str) -> None:
    """Judge sites of eight healthy racks until there were so many racks, and print what became of them."""
    racks, nodes, texts = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(-(-count // len(RACKS))):
        report = Laboratory(folder, seed=seed, stages=stages).report()
        racks.update(rack["verdict"] for rack in report.get("racks", ()))
        nodes.update(node["verdict"] for node in report["nodes"])
        texts.update({f"{each.verdict} {each.check}" for each in statements(report)})
        if not seed % 5:
            print(f"{racks.total()} racks: {dict(racks)}, {nodes.total()} trays: {dict(nodes)}", flush=True)
        del report
        gc.collect()
    print("| healthy racks | PASS | FAIL | INCOMPLETE | trays | PASS | FAIL | INCOMPLETE |")
    print("|---|---|---|---|---|---|---|---|")
    words = ("PASS", "FAIL", "INCOMPLETE")
    cells = [racks.total(), *(racks[word] for word in words), nodes.total(), *(nodes[word] for word in words)]
    print(f"| {' | '.join(map(str, cells))} |")
    for text, sites in texts.most_common(12):
        print(f"{text}: in {sites} sites of {len(RACKS)} racks")


def draw_faults(times: int, folder: str) -> None:
    """Print for each fault how often its part was named, and by which checks."""
    print("| fault | | named | by |")
    print("|---|---|---|---|")
    for number, fault in sorted(FAULTS.items()):
        named, checks = 0, Counter[str]()
        for seed in range(times):
            laboratory = Laboratory(folder, seed=seed, racks=racks_of(fault), stages=stages_of(fault))
            laboratory.apply(fault)
            naming, missing = named_by(laboratory.report(), fault)
            named += bool(naming) and not missing
            checks.update({f"{each.verdict} {each.check}" for each in naming})
        by = ", ".join(text for text, _ in checks.most_common(3))
        print(f"| {number} | {fault['fault']} | {named} of {times} | {by} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--racks", type=int, default=1000, help="healthy racks, in sites of eight")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--faults", type=int, default=1, help="draws of each fault")
    options = parser.parse_args()
    gc.disable()  # none of millions of objects is garbage before the end of a site
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if options.racks:
            draw_healthy(options.racks, tuple(options.stages.split(",")), folder)
        if options.faults:
            draw_faults(options.faults, folder)
    print(f"{time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
