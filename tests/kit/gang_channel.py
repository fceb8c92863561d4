"""Members of a gang."""

import threading
import time

import pytest

pytest.importorskip("torch")
from gpuval_workloads.common.stall import Beat
from gpuval_workloads.gang.control_channel import ControlChannel
from gpuval_workloads.gang.members import Gang, GangMember

TOKEN = "a token"


def gang(port, index, count=3):
    members = tuple(GangMember(f"node-{i + 1}", f"127.0.0.{i + 1}", 1) for i in range(count))
    return Gang("all", members, index, port, 3022)


class Party:
    """A member: its line, what it was told to stop for, and its heartbeats."""

    def __init__(self, port, index, limits, count=3, token=TOKEN, find_ended=lambda _nodes: None):
        self.stops, self.ticks, self.index = [], 0, index
        self.is_still = False
        self.line = ControlChannel(
            gang(port, index, count), token, limits, self.beats, self.stops.append, {"brings": index}, find_ended
        )

    def beats(self):
        if not self.is_still:
            self.ticks = int(time.monotonic() * 10)
        beat = Beat(4000 + self.index, int(time.monotonic() * 10), self.ticks, 1, "work (x.py:1)", False, 0.0)
        return {0: (beat, "S")}


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
