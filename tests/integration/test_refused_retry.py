"""A retry that its node refuses, for its disk is full by then, ends the node at once: no run waits for its deadline."""

import json
import time

STAGES = json.dumps(
    {
        "gpuval_stages": ["facts", "pause"],
        "pause_workload": {"command": ["sh", "-c", "sleep 5; exit 3"], "needs": ["facts"], "retry": ["crash"]},
    }
)


def test_a_retry_that_is_refused_ends_the_run_with_its_reason(new_fleet, as_root):
    with new_fleet("refused_retry", nodes={"full": {}, "node-2": {}}) as fleet:
        fleet.nodes["full"]["gpuval_node_dir"] = str(fleet.mount("disk", 64 << 20))
        playing = fleet.start("gpuval.fleet.validate", "-e", STAGES)
        playing.expect(r"full pause: running")
        with (fleet.root / "disk/filler").open("wb") as stream:
            try:
                while True:
                    stream.write(bytes(1 << 20))
                    stream.flush()
            except OSError:
                pass
        playing.expect(r"full: pause again, as attempt 2")
        begun = time.monotonic()
        done = playing.wait()
        assert time.monotonic() - begun < 120, done  # its deadline is in two hours
        (fleet.root / "disk/filler").unlink()
        assert "FINAL ACCEPTANCE" in done.output, done
        assert "disk" in done.told.split("full: not started", 1)[1][:200], done
