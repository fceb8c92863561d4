"""Which Python of a node a launch takes, however it was said, where the program goes over standard input."""

import sys

import pytest

from tests.kit.fleet import Fleet

WORK = {
    "command": ["sh", "-c", "echo worked: 3 items"],
    "patterns": [{"name": "worked_items", "pattern": r"^worked: (?P<value>\d+)"}],
}


@pytest.mark.parametrize(
    "interpreter",
    ["{{ my_python }}", "{{ omit }}", "auto_silent"],
)
def test_the_interpreter_may_be_given_in_many_ways(tmp_path, interpreter):
    settings = {
        "ansible_pipelining": True,
        "ansible_python_interpreter": interpreter,
        "my_python": sys.executable,
        "ansible_interpreter_python_fallback": [sys.executable],
        "gpuval_stages": ["facts", "work"],
        "work_workload": WORK,
    }
    fleet = Fleet(tmp_path, settings=settings)
    done = fleet.play()
    fleet.close()
    assert done.code == 0, done
    assert fleet.verdict("node-1")["verdict"] == "PASS"
