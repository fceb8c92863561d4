"""Records of facts of the trays of NVLink racks, for judgements of several racks."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, judge, make_record, make_run, metric

FABRIC = [check for check in SHIPPED if "_fabric" in check.name or check.name.startswith("facts_gpu_nvlinks_gb")]
NO_UUID = "00000000-0000-0000-0000-000000000000"


def tray_facts(name, place, uuid, chassis, model="NVIDIA GB200"):
    """The record of a healthy tray: four GPUs that joined the domain."""
    gpus = [
        {"index": index, "name": model, "uuid": f"GPU-{name}-{index}", "serial": f"{name}{index // 2}",
         "driver_version": "580.105.08", "firmware_version": "97.00.82.00.01", "ecc_mode": "enabled",
         "fabric_state": "completed", "fabric_status": "success", "fabric_clique": 1, "fabric_cluster_uuid": uuid,
         "chassis_serial": chassis, "chassis_slot": place, "tray_index": place, "host_id": 1,
         "peer_type": "Switch Connected", "module_id": index + 1}
        for index in range(4)
    ]  # fmt: skip
    environment = {
        "accelerator": {"vendor": "nvidia", "count": 4},
        "identity": {
            "machine_id": f"machine-{name}",
            "serial": f"S-{name}",
            "gpu_uuids": [gpu["uuid"] for gpu in gpus],
        },
        "gpus": gpus,
        "imex": {"service": "inactive", "configured": [], "domain": None, "nodes": [], "problem": None},
        "firmware": {"product_name": "GB200 NVL", "bios_version": "2.1", "bmc_version": "24.10"},
    }
    metrics = [metric(name, count) for name, count in
               (("gpu_count", 4), ("gpu_hardware_count", 4), ("gpu_fabric_not_ready_count", 0))]  # fmt: skip
    for index in range(4):
        metrics += [metric(f"gpu_fabric_{word}_count", 1, scope=f"gpu:{index}") for word in ("joined", "clique")]
        metrics.append(metric("gpu_fabric_differs_count", 0, scope=f"gpu:{index}"))
    return make_record(name, "facts", metrics=metrics, environment=environment)


class RackFleet:
    """A run of whole racks, r00-t00 and so on, with labels; methods spoil it."""

    def __init__(self, racks=1, trays=18, model="NVIDIA GB200", **fields):
        names = [f"r{rack:02}-t{tray:02}" for rack in range(racks) for tray in range(trays)]
        self.run = make_run(names, stages=["facts"], profile="standard", **fields)
        self.evidence = RunEvidence(launches={name: {"state": "started", "message": ""} for name in names})
        for name in names:
            rack, tray = int(name[1:3]), int(name[-2:])
            self.evidence.records[name] = {"facts": tray_facts(name, tray, uuid_of(rack), chassis_of(rack), model)}
            self.run["nodes"][name]["labels"] = {"rack": f"r{rack:02}"}

    def gpus(self, name):
        return self.evidence.records[name]["facts"]["environment"]["gpus"]

    def set(self, name, gpus=range(4), **values):
        for index in gpus:
            self.gpus(name)[index].update(values)

    def imex(self, name, **values):
        self.evidence.records[name]["facts"]["environment"]["imex"].update(values)

    def break_fabric(self, name):
        """None of the tray's GPUs has joined; where the tray is, they still report."""
        self.set(name, fabric_state="in progress", fabric_clique=0, fabric_cluster_uuid=NO_UUID)
        for one in self.evidence.records[name]["facts"]["metrics"]:
            if one["name"] in ("gpu_fabric_joined_count", "gpu_fabric_clique_count"):
                one["value"] = 0

    def drop(self, name):
        """The inventory has no such tray."""
        for part in (self.run["nodes"], self.evidence.records, self.evidence.launches):
            del part[name]

    def lose(self, name):
        """The tray reports nothing."""
        self.evidence.records[name] = {}
        self.evidence.launches[name] = {"state": "unreachable", "message": "no route to host"}

    def declare(self, names, **values):
        for name in names:
            self.run["nodes"][name].setdefault("declared", {})["rack"] = values

    def judged(self):
        return judge(self.run, self.evidence, FABRIC)


def uuid_of(rack):
    return f"7b968a6d-c8aa-45e1-9e07-e1e51be9{rack:04}"


def chassis_of(rack):
    return f"182012345{rack:04}"
