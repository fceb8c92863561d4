"""What the plan of a node is built with, where a test is about something else."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

SETTINGS = plans.PlanSettings(
    run_id="run-1",
    node="node-1",
    created_at="2026-11-20T20:00:00Z",
    deadline_seconds=7200,
    heartbeat_seconds=10,
    runtime="host",
    sku="auto",
    gpu_count=None,
    python="python3",
    models_dir=None,
)
