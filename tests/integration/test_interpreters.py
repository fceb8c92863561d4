"""Which Python of a node a launch takes, however it was said, where the program goes over standard input."""

import sys

from tests.kit.fleet import machine

WORK = {
    "command": ["sh", "-c", "echo worked: 3 items"],
    "patterns": [{"name": "worked_items", "pattern": r"^worked: (?P<value>\d+)"}],
}
WAYS = {"template": "{{ my_python }}", "omitted": "{{ omit }}", "found": "auto_silent"}


def test_the_interpreter_may_be_given_in_many_ways(new_fleet):
    settings = {
        "ansible_pipelining": True,
        "my_python": sys.executable,
        "ansible_interpreter_python_fallback": [sys.executable],
        "gpuval_stages": ["facts", "work"],
        "work_workload": WORK,
    }
    with new_fleet("interpreters", settings=settings) as fleet:
        fleet.nodes = {
            name: {**machine(fleet.root / name, f"{number:032x}"), "ansible_python_interpreter": way}
            for number, (name, way) in enumerate(WAYS.items())
        }
        done = fleet.play()
        assert done.code == 0, done
        assert fleet.report()["counts"]["PASS"] == len(WAYS)
