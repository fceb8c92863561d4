"""Runs of small fleets in a real bucket, as the judge and the nodes leave them there."""

import copy
import json
from datetime import datetime, timedelta, timezone

from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import take_record

from tests.kit.builders import check, healthy, judge, make_run, metric, times

BEGIN = datetime(2026, 9, 1, 10, 0, tzinfo=timezone.utc)
DAYS = 7
CHECKS = [
    check("tflops", metric="training_model_tflops", scope="gpu", value=600, unit="TFLOP/s"),
    check("gpus", stage="facts", metric="gpu_count", kind="equal", value_from="gpu_count"),
]


def time_of(number):
    return (BEGIN + timedelta(days=DAYS * number)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Run:
    """The run with a number (weeks from the first) of some nodes; change ``records`` before it is put."""

    def __init__(self, number, nodes=("node-1", "node-2", "node-3"), *, folder=None, gpus=4, profile="quick"):
        self.id = f"run-{number}"
        self.folder = folder or self.id
        self.gpus = gpus
        self.run = make_run(
            nodes,
            run_id=self.id,
            folder=self.folder,
            created_at=time_of(number),
            finished_at=time_of(number),
            gpu_count=gpus,
            profile=profile,
        )
        self.evidence = healthy(self.run, gpus=gpus)
        for node, records in self.records.items():
            for record in records.values():
                record |= {"run_id": self.id, **times(self.run["created_at"], record["duration_seconds"])}
            environment = records["facts"]["environment"]
            environment["firmware"] = {"bios_version": "2.1"}
            for index, gpu in enumerate(environment["gpus"]):
                gpu |= {"name": "NVIDIA H200", "serial": f"{node}/{index}", "uuid": f"GPU-{node}-{index}",
                        "driver_version": "580.1", "firmware_version": "96.00"}  # fmt: skip
            records["training"]["environment"] = {"torch": "2.13.0"}
            records["training"]["fingerprints"] = {"training_setup": "llama-1b 8x2048 bf16"}
            self.speed(node, [700.0] * gpus)

    @property
    def records(self):
        return self.evidence.records

    def facts(self, node):
        return self.records[node]["facts"]["environment"]

    def speed(self, node, figures):
        """The TFLOP/s of each GPU of a node."""
        training = self.records[node]["training"]
        kept = [one for one in training["metrics"] if one["name"] != "training_model_tflops"]
        told = [metric("training_model_tflops", one, "TFLOP/s", f"gpu:{gpu}") for gpu, one in enumerate(figures)]
        training["metrics"] = [*kept, *told]

    def further_attempt(self, node, stage="training"):
        record = self.records[node][stage]
        earlier = {**copy.deepcopy(record), "state": "crash", "exit_code": 1}
        record.update(attempt=2, attempts=[earlier])

    def receive_all(self):
        """What is left of the records when they are received."""
        sent, self.evidence.records = self.records, {}
        for node, records in sent.items():
            for stage, record in records.items():
                data = json.dumps(record).encode()
                assert take_record(self.evidence, self.run, f"{self.folder}/records/{stage}/{node}.json", data), stage

    def refuse(self, node, stage, data):
        """A record that is no evidence came instead."""
        del self.records[node][stage]
        key = f"{self.folder}/records/{stage}/{node}.json"
        assert take_record(self.evidence, self.run, key, data) is None

    def objects(self, *, judged=True):
        """(key, bytes) of what the history reads in the bucket."""
        yield f"{self.folder}/run.json", json.dumps(self.run).encode()
        if judged:
            report = judge(self.run, self.evidence, CHECKS)
            yield f"{self.folder}/report/report.json", "".join(report_file.lines(report)).encode()

    def put(self, store, *, judged=True):
        for key, data in self.objects(judged=judged):
            store.put(key, data)
        return self
