import pytest

from tests.kit.builders import healthy, judge, make_record, make_run, training_metrics


@pytest.fixture
def mixed():
    """One node that passes, one with a slow GPU, one that crashed, one that was never reached."""
    run = make_run(["good", "slow", "crashed", "gone"], gpu_count=8)
    evidence = healthy(run)
    evidence.records["slow"]["training"]["metrics"] = [
        {**one, "value": 1.0} if one["scope"] == "gpu:3" else one for one in training_metrics()
    ]
    evidence.records["crashed"]["training"] = make_record(
        "crashed", state="crash", message="killed by SIGKILL", metrics=[]
    )
    del evidence.records["gone"]
    evidence.launches["gone"] = {"state": "unreachable", "message": "No route to host"}
    return judge(run, evidence)
