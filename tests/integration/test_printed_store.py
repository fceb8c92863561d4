"""A stage that prints the run's private files leaves no signed URL in logs of node, store and results."""

import json


def test_a_stage_that_prints_the_signed_urls_shows_none(new_fleet):
    with new_fleet("printed") as fleet:
        script = f"find {fleet.root}/node -name store.json -exec cat {{}} +; echo the end"
        stages = {
            "gpuval_stages": ["facts", "show"],
            "show_workload": {"command": ["sh", "-c", script], "needs": ["facts"]},
        }
        done = fleet.play("gpuval.fleet.validate", "-e", json.dumps(stages))
        assert "FINAL ACCEPTANCE" in done.output, done.output[-2000:]  # it wrote no result
        assert "records/show/node-1.json?***" in fleet.log("node-1", "show")
        urls = json.loads((fleet.node_directory("node-1") / "store.json").read_text())["put"].values()
        signatures = {url.partition("X-Amz-Signature=")[2].partition("&")[0] for url in urls}
        assert len(signatures) > 3
        logs = [
            *fleet.root.rglob("show.log"),
            *fleet.store_data.rglob("*/show/node-1.*"),
            *fleet.results.rglob("show.json"),
        ]
        assert len(logs) >= 5, logs
        shown = [path for path in logs for signature in signatures if signature in path.read_text()]
        assert not shown
