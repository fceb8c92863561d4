"""Options of actions and steps."""


def run_options(results, run_id, state_dir=".gpuval", endpoint="", bucket="b", **options):
    """Of `open_run`: a run of one stage, with what is given in place of it."""
    return {
        "run_id": run_id,
        "results_dir": str(results),
        "store": {"bucket": bucket, "state_dir": state_dir, "endpoint": endpoint},
        "profile": "custom",
        "profile_stages": ["facts"],
        "workloads": {"facts": {"command": ["true"]}},
        "deadline_seconds": 600,
        **options,
    }
