"""The limits of partition, QOS and reservation on the time of a job, by what Slurm 22.05 and 26.05 print."""

import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm import limits, script
from ansible_collections.gpuval.fleet.plugins.plugin_utils.slurm.commands import Slurm, SlurmError

PARTITIONS = """\
PartitionName=gpu AllowGroups=ALL Default=YES QoS=N/A DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0
PartitionName=short AllowGroups=ALL Default=NO QoS=N/A DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=00:30:00 MinNodes=0
PartitionName=half AllowGroups=ALL Default=NO QoS=half DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=UNLIMITED State=UP
PartitionName=day AllowGroups=ALL Default=NO QoS=daily DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=2-00:00:00 State=UP
"""
QOS = (
    "normal||\ndaily|1-00:00:00|\nquick|00:10:00|DenyOnLimit\nfirst|00:40:00|DenyOnLimit,PartitionTimeLimit\n"
    "half|00:30:00|\nlong|2-00:00:00|OverPartQOS\n"
)
RESERVATION = "ReservationName=maint StartTime={} EndTime={} Duration=02:00:00 Nodes=gpu-1 Flags={}\n"


def limit(shown_qos=QOS, flags="SPEC_NODES", begins=-900, left=0, **chosen):
    times = [time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + after)) for after in (begins, left)]
    answers = {"partition": PARTITIONS, "reservation": RESERVATION.format(*times, flags), "qos": shown_qos}

    def call(command, _data, _seconds):
        word = next(word for word in command if word in answers)
        return (0, answers[word], "") if answers[word] else (1, "", "sacctmgr: error: Connection refused")

    values = dict.fromkeys(script.VARIABLES, "") | {"gpuval_slurm_arguments": chosen.pop("arguments", [])}
    values |= {f"gpuval_slurm_{name}": value for name, value in chosen.items()}
    return limits.wall_limit(Slurm(call), script.JobSettings.of(values))


NONE = limits.WallLimit()


@pytest.mark.parametrize(
    ("chosen", "seconds", "words"),
    [
        ({}, NONE.seconds, ""),
        ({"partition": "short"}, 1800, "MaxTime=00:30:00 of partition short"),
        ({"partition": "short,gpu"}, NONE.seconds, ""),
        ({"arguments": ["--partition=short"]}, 1800, "MaxTime=00:30:00 of partition short"),
        ({"partition": "gpu", "arguments": ["--partition=gpu", "--partition=short"]}, 1800, "partition short"),
        ({"partition": "half", "qos": "long"}, 172800, "MaxWall=2-00:00:00 of QOS long"),
        ({"partition": "half", "qos": "quick,long"}, 1800, "MaxWall=00:30:00 of QOS half"),
        ({"partition": "nosuch"}, NONE.seconds, ""),
        ({"qos": "quick"}, 600, "MaxWall=00:10:00 of QOS quick"),
        ({"qos": "normal", "partition": "short"}, 1800, "MaxTime=00:30:00 of partition short"),
        ({"partition": "day"}, 86400, "MaxWall=1-00:00:00 of QOS daily"),
        ({"partition": "day", "qos": "quick"}, 86400, "MaxWall=1-00:00:00 of QOS daily"),
        ({"partition": "short", "qos": "first"}, 2400, "MaxWall=00:40:00 of QOS first"),
        ({"partition": "short", "qos": "quick", "shown_qos": ""}, 1800, "MaxTime=00:30:00 of partition short"),
        ({"reservation": "maint", "left": 900}, 840, "EndTime="),
        ({"reservation": "maint", "begins": 3600, "left": 7200}, 3540, "EndTime="),
        ({"reservation": "maint", "left": 900, "flags": "FLEX"}, NONE.seconds, ""),
        ({"reservation": "maint", "left": 9000, "partition": "short"}, 1800, "MaxTime="),
    ],
)
def test_the_shortest_limit_counts(chosen, seconds, words, monkeypatch):
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    found = limit(**chosen)
    assert found.seconds == pytest.approx(seconds, abs=60)
    assert words in found.source


@pytest.mark.parametrize(
    ("chosen", "holds"),
    [
        ({"qos": "quick"}, True),
        ({"qos": "quick,long"}, False),
        ({"qos": "nosuch"}, False),
        ({}, False),  # the default QOS may be long
        ({"shown_qos": "normal||\nhalf|00:30:00|DenyOnLimit\n"}, True),
        ({"shown_qos": ""}, True),
        ({"reservation": "maint", "left": 900}, True),
    ],
)
def test_a_limit_from_which_a_qos_may_exempt_the_job_may_not_hold(chosen, holds):
    assert limit(**{"partition": "short", **chosen}).holds is holds


def test_what_slurm_refuses_is_an_error_and_a_slurmctld_that_is_away_is_waited_for(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    settings = script.JobSettings()
    with pytest.raises(SlurmError, match="Unable to contact"):
        limits.wall_limit(Slurm(lambda *_: (1, "", "Unable to contact slurm controller")), settings)
    with pytest.raises(SlurmError, match="Reservation r not found") as raised:
        limits.wall_limit(Slurm(lambda *_: (1, "", "Reservation r not found")), settings)
    assert not raised.value.away
