"""A gang's work on the GPUs of this machine: ZeRO against plain DDP of the same run, and collectives; prints tables.

    python benchmarks/gang/run.py [--members N] [--slots N] [--zero 2 3] [--seconds S] [--apart] [--json FILE]

Each member is a process tree of its own with its share of the GPUs and a loopback address, as a node would be. With
``--apart`` NCCL takes the members for different machines (NCCL_HOSTID) and goes from one to another over TCP. Without
GPUs, members of one process each train and talk by gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
NODE = HERE.parents[1] / "collections" / "ansible_collections" / "gpuval" / "fleet" / "node"
LIMIT_SECONDS = 600
PORT = 29610
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_receive")


def main() -> int:
    parser = argparse.ArgumentParser(description="ZeRO against plain DDP of the same run, and collectives.")
    parser.add_argument("--members", type=int, default=1 if torch.cuda.is_available() else 2)
    parser.add_argument("--slots", type=int, help="processes of each member (all its GPUs)")
    parser.add_argument("--zero", type=int, nargs="*", default=[2, 3], choices=[1, 2, 3], help="stages to train with")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of each training with ZeRO, and of the collectives"
    )
    parser.add_argument("--apart", action="store_true", help="members talk over TCP, as other machines would")
    parser.add_argument("--json", type=Path, help="write all metrics there as well")
    options = parser.parse_args()
    options.slots = options.slots or max(1, torch.cuda.device_count() // options.members)
    works = {"collectives": ["collectives", "--seconds", str(options.seconds)]}
    for stage in options.zero:
        works[f"ZeRO-{stage}"] = ["training", "--zero", str(stage), "--seconds", str(options.seconds)]
    results = {}
    for name, arguments in works.items():
        results[name] = gang(arguments, options)
        print(f"{name}: {results[name]['state']}: {results[name]['message']}", flush=True)
    print()
    found = {name: values(result) for name, result in results.items()}
    tell_collectives(found.pop("collectives"))
    tell_trainings(found)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def gang(arguments: list[str], options: argparse.Namespace) -> dict:
    """Run one work with all members; return what the leader found. Raises ``SystemExit`` with its log's end."""
    members = [
        {"node": f"node-{i + 1}", "address": f"127.0.0.{i + 1}", "slots": options.slots} for i in range(options.members)
    ]
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="gpuval-benchmark-") as name:
        folders = [Path(name) / member["node"] for member in members]
        processes = []
        for index, folder in enumerate(folders):
            folder.mkdir()
            document = {"name": "all", "members": members, "index": index, "port": PORT, "ssh_port": PORT + 2}
            (folder / "gang.json").write_text(json.dumps(document), encoding="utf-8")
            environment = {**os.environ, **member_environment(index, options), "GPUVAL_GANG_TOKEN": token}
            environment |= {
                "PYTHONPATH": str(NODE),
                "GPUVAL_GANG_FILE": str(folder / "gang.json"),
                "GPUVAL_WORK_DIR": str(folder),
                "GPUVAL_RESULT_FILE": str(folder / "result.json"),
            }
            with (folder / "log").open("wb") as log:
                command = [sys.executable, "-m", "gpuval_workloads.gang", *arguments]
                processes.append(
                    subprocess.Popen(
                        command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                    )
                )
        try:
            codes = [process.wait(timeout=LIMIT_SECONDS) for process in processes]
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if any(codes):
            for folder in folders:
                print((folder / "log").read_text(encoding="utf-8", errors="replace")[-3000:], file=sys.stderr)
            raise SystemExit(f"{' '.join(arguments)}: the members ended with {codes}")
        return json.loads((folders[0] / "result.json").read_text(encoding="utf-8"))


def member_environment(index: int, options: argparse.Namespace) -> dict[str, str]:
    if not torch.cuda.is_available():
        return {"GPUVAL_ACCELERATOR": "cpu", "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    first = index * options.slots
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(str(first + slot) for slot in range(options.slots))}
    return {**shown, **({"NCCL_HOSTID": f"member-{index}"} if options.apart else {})}


def values(result: dict) -> dict[str, float]:
    return {m["name"]: m["value"] for m in result["metrics"] if m["scope"] == "node" and m["value"] is not None}


def tell_collectives(found: dict[str, float]) -> None:
    print(f"{'collective':16}{'bus, GB/s':>12}{'least size, µs':>16}")
    for name in COLLECTIVES:
        if f"gang_{name}_latency_seconds" in found:
            bus = found.get(f"gang_{name}_bus_bytes_per_second", 0.0)
            print(f"{name:16}{bus / 1e9:12.2f}{found[f'gang_{name}_latency_seconds'] * 1e6:16.1f}")
    print(f"largest {found['gang_collective_largest_bytes']:.0f} bytes; "
          f"{found['gang_collective_error_count']:.0f} elements wrong\n")  # fmt: skip


def tell_trainings(trainings: dict[str, dict[str, float]]) -> None:
    print(f"{'training':10}{'tokens/s':>12}{'TFLOP/s a GPU':>15}{'DDP tokens/s':>14}{'of DDP':>8}{'DDP of alone':>14}")
    for name, found in trainings.items():
        rate, tflops = found["gang_zero_tokens_per_second"], found["gang_zero_model_tflops"]
        scaling = found.get("gang_scaling_ratio")
        print(
            f"{name:10}{rate:12,.0f}{tflops:15.1f}{found['gang_ddp_tokens_per_second']:14,.0f}"
            f"{found['gang_zero_ratio']:8.3f}{'-' if scaling is None else f'{scaling:.3f}':>14}"
        )


if __name__ == "__main__":
    sys.exit(main())
