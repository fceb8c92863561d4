"""Runs of whole racks: trays whose outputs the product's parsers read, and what the stages of their nodes report."""

import random
from collections.abc import Collection
from pathlib import Path

import yaml
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import collect, nvidia_gpus
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, make_record, make_run
from tests.kit.rack_lab.trays import Tray, TrayGpu

HERE = Path(__file__).parent
SITE = yaml.safe_load((HERE / "racks.yml").read_text())
FAULTS = {fault["number"]: fault for fault in yaml.safe_load((HERE / "faults.yml").read_text())}
RACKS, TRAYS, GPUS, LINKS = tuple(SITE["racks"]), SITE["trays"], SITE["gpus"], SITE["links"]
#: The first slot of a compute tray in the published outputs: slot 14 has tray 4.
FIRST_SLOT = 10
JUDGED_AT = "2026-11-02T10:00:00Z"
#: By fabric between trays: its stage, and the beginning of the figures that it alone has.
FABRICS = {"mnnvl": ("collective_nvlink", "gang_nvlink_"), "network": ("collective", "gang_")}
GANG_STAGES = tuple(stage for stage, _ in FABRICS.values())
STAGES = ("facts", "diagnostics", *GANG_STAGES)
CLIQUE_LABEL = "nvidia.com/gpu.clique"
#: Seconds of the stage that telemetry compares.
STAGE_SECONDS = 600


def stages_of(fault):
    """The stages in which the fault shows: all faults in the facts, or beside."""
    keys = {key for change in fault["changes"] for key in change}
    return ("facts", *(("diagnostics",) if "throttled" in keys else ()), *(GANG_STAGES if "transport" in keys else ()))


def racks_of(fault):
    """The racks that the fault befalls, and those that its expectation names."""
    named = [int(name.split()[1]) for name in fault["expected"]["names"] if name.startswith("rack ")]
    return sorted({change["rack"] for change in fault["changes"]} | {*named, *fault.get("beside", ())})


def name_of(rack, tray):
    return f"rack{rack}-tray{tray:02}"


class Laboratory:
    """Healthy racks with the spread of real ones; `apply` puts in a fault, `report` is the judge's."""

    def __init__(self, folder, *, seed=0, racks: Collection[int] = RACKS, stages=STAGES):
        self.folder, self.stages = Path(folder), stages
        self.draw = random.Random(f"racks {seed}")
        self.trays = {
            (rack, tray): self._tray(rack, tray, SITE["racks"][rack]) for rack in racks for tray in range(1, TRAYS + 1)
        }

    def _tray(self, rack, number, declared):
        model = declared["sku"]
        gpus = [self._gpu(rack, number, index, declared) for index in range(GPUS)]
        tray = Tray(name_of(rack, number), model, gpus, self._address(rack, number), declared["imex"])
        if declared["imex"] == "domain":
            tray.peers = [(self._address(rack, each), "READY") for each in range(1, TRAYS + 1)]
        return tray

    @staticmethod
    def _address(rack, tray):
        return f"10.{rack}.0.{tray}"

    def _gpu(self, rack, tray, index, declared):
        """A healthy GPU: it differs from others in its identity, temperature, power, and in what its links repaired."""
        number, draw = ((rack * 100) + tray) * 10 + index, self.draw
        xml = {
            "serial": f"{declared['chassis'][:4]}{rack:03}{tray:03}{index // 2:03}",
            "uuid": f"GPU-{draw.getrandbits(32):08x}-0000-4000-8000-{number:012x}",
            "pdi": f"0x{number:016x}",
            "vbios_version": declared["vbios"],
            "platformInfo/chassis_serial_number": declared["chassis"],
            "platformInfo/slot_number": str(FIRST_SLOT + tray - 1),
            "platformInfo/tray_index": str(tray - 1),
            "platformInfo/gpu_fabric_guid": f"0x{0x5A000000 + number:016x}",
            "fabric/state": "Completed",
            "fabric/status": "Success",
            "fabric/cliqueId": declared["clique"],
            "fabric/clusterUuid": declared["domain"],
            "temperature/gpu_temp": f"{round(draw.gauss(36, 2.5))} C",
            "temperature/memory_temp": f"{round(draw.gauss(37, 2.5))} C",
            "gpu_power_readings/average_power_draw": f"{draw.gauss(175, 8):.2f} W",
            "gpu_power_readings/instant_power_draw": f"{draw.gauss(175, 8):.2f} W",
            "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap": (
                f"{draw.randrange(4_000_000) if draw.random() < 0.3 else 0} us"
            ),
            "ecc_errors/aggregate/sram_correctable": str(int(draw.random() < 0.02)),
            "remapped_rows/remapped_row_corr": str(int(draw.random() < 0.01)),
        }
        links = {
            link: {"recoveries": draw.randrange(3) if draw.random() < 0.05 else 0, "errors": 0}
            for link in range(LINKS)
        }  # fmt: skip
        return TrayGpu(index, xml, links)

    def apply(self, fault):
        """Put in the fault, an entry of faults.yml."""
        for change in fault["changes"]:
            for number in change.get("trays", range(1, TRAYS + 1)):
                self._change(change, change["rack"], number)

    def _change(self, change, rack, number):
        tray = self.trays[rack, number]
        chosen = change.get("gpus", range(GPUS))
        for gpu in [gpu for gpu in tray.gpus if gpu.index in chosen]:
            gpu.xml |= change.get("xml", {})
            for link in change.get("links", {}):
                gpu.links[link] |= change["links"][link]
            if change.get("missing"):
                tray.gpus.remove(gpu)
            if "throttled" in change:
                tray.throttled[gpu.index] = change["throttled"]
        tray.label, tray.transport = change.get("label", tray.label), change.get("transport", tray.transport)
        if "imex" in change:
            tray.imex_service = change["imex"]["service"]
            for other in (each for (its_rack, _), each in self.trays.items() if its_rack == rack):
                other.peers = [
                    (address, change["imex"]["node_status"] if address == tray.address else state)
                    for address, state in other.peers
                ]

    def evidence(self, trays: Collection[int] = range(1, TRAYS + 1)):
        """The run of the trays with these numbers, and what they report: facts by the product's parsers, the other
        stages drawn."""
        import healthy  # of the benchmarks, which tests and programs of benchmarks alone have on their path

        noise = healthy.Noise(f"racks {self.draw.random()}", 1.0, repeat=0.003, gpu_cv=0.002)
        nodes = {tray.name: (place, tray) for place, tray in self.trays.items() if place[1] in trays}
        run = make_run(list(nodes), stages=self.stages, gpu_count=GPUS, setups=healthy.setups_of(nvls=True))
        run["narrowed_by"] = [] if len(trays) == TRAYS else ["limit"]
        evidence = RunEvidence(launches={name: {"state": "finished", "message": ""} for name in nodes})
        together = [stage for stage in self.stages if stage in GANG_STAGES]
        for number, (name, ((rack, _number), tray)) in enumerate(nodes.items()):
            labels = {"rack": f"rack {rack}", **({CLIQUE_LABEL: tray.label} if tray.label else {})}
            run["nodes"][name] |= {"labels": labels, "gang_stages": together}
            if tray.partition:
                run["nodes"][name]["declared"] = {"rack": {"partition": tray.partition}}
            node = {source: noise._differing(spread) for source, spread in healthy.SPREADS.items()}
            records = healthy.records(name, number, tray.model, noise, node, stages=self.stages)
            for stage in together:
                records[stage]["environment"] = {"gang": {"name": f"rack-{rack}", "nodes": len(trays), "joined": True}}
            for fabric, share in tray.transport.items():
                stage, prefix = FABRICS[fabric]
                if stage in records:
                    self._slow(records[stage], prefix, share)
            records["facts"] = self._facts(tray)
            if "diagnostics" in records:
                self._throttle(tray, records["diagnostics"])
            evidence.records[name] = records
        return run, evidence

    def _facts(self, tray):
        tray.write_files(self.folder)
        result = collect.facts_result(str(self.folder), run=tray.run)
        return make_record(tray.name, "facts", **result)

    @staticmethod
    def _slow(record, prefix, share):
        """A share of the figures; with 0 NCCL silently takes another network instead of this fabric."""
        for figure in record["metrics"]:
            if figure["name"].startswith(prefix) and figure["name"].endswith(("bytes_per_second", "over_ports_ratio")):
                figure["value"] *= share or 0.05
            if figure["name"] == "gang_network_unexpected_count" and not share:
                figure["value"] = 1

    @staticmethod
    def _throttle(tray, record):
        """Put in the shares of time that the driver's counters tell of the stage."""
        from gpuval_runner.telemetry.gpu_figures import TelemetryComparison

        readings = []
        for gained in ({}, tray.throttled):
            tray.throttled = gained
            by_uuid, problem = nvidia_gpus.throttle_counters(tray.run, STAGE_SECONDS)
            assert not problem, problem
            readings.append({
                gpu.index: {"uuid": gpu.uuid, **by_uuid[gpu.uuid]}
                for gpu in tray.gpus
            })  # fmt: skip
        shares = TelemetryComparison(*readings, seconds=STAGE_SECONDS).throttled
        present = {f"gpu:{gpu.index}": shares[gpu.index] for gpu in tray.gpus}
        for figure in record["metrics"]:
            figure["value"] = present.get(figure["scope"], {}).get(figure["name"], figure["value"])

    def report(self, trays: Collection[int] = range(1, TRAYS + 1)):
        return verdict.judge(*self.evidence(trays), SHIPPED, judged_at=JUDGED_AT)
