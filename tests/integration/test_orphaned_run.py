"""A run whose controller was killed: what commands say of it, what resumes it, and the report after a clean."""

import json
import re

STAGES = json.dumps(
    {"gpuval_stages": ["facts", "pause"], "pause_workload": {"command": ["sleep", "600"], "needs": ["facts"]}}
)


def test_the_same_command_resumes_its_run_after_another_was_refused_beside_it(new_fleet):
    with new_fleet("orphaned", settings={"gpuval_heartbeat_seconds": 1}) as fleet:
        first = fleet.start("gpuval.fleet.validate", "-e", STAGES)
        first.expect(r"pause: running")
        first.kill()
        run_id = fleet.run_id
        second = fleet.play("gpuval.fleet.validate", "-e", STAGES, "--limit", "node-1")
        assert second.code != 0, second
        resume = rf"`make validate INVENTORY=\S+ RUN={run_id}`"
        ends = rf"end it \(`make clean INVENTORY=\S+ RUN={run_id}`\)"
        refused = rf"not started \(refused\): run {run_id} is at work .*: resume that run \({resume}\), .*{ends}"
        assert re.search(refused, second.output), second
        reported = fleet.play("gpuval.fleet.report", "-e", f"gpuval_run_id={run_id}")
        assert re.search(rf"- The run has not ended: {resume} resumes it$", reported.output, re.MULTILINE), reported
        assert not re.search("gpuval_deadline_seconds|make rerun|Actions: ", reported.output), reported
        again = fleet.start("gpuval.fleet.validate", "-e", STAGES)
        again.expect(rf"run {run_id}: 1 node\(s\), profile custom, resumed where it stopped")
        again.expect(r"pause \d+ running|pause: running")
        again.kill()
        cleaned = fleet.play("gpuval.fleet.clean")
        assert f"this clean ends run {run_id}, working since " in cleaned.output, cleaned
        assert ", at work with 1 node, without a controller" in cleaned.output
        after = fleet.play("gpuval.fleet.report", "-e", f"gpuval_run_id={run_id}")
        assert "the run was ended by another command (clean)" in after.output, after
        assert "lost_contact" not in after.output and "sshd" not in after.output
