"""Programs that tests fork from one that has imported what they need."""

import os
import signal
import subprocess
import sys

from tests.kit.fleet import PlaybookProcess
from tests.kit.processes import below

PROGRAM = """
import os, sys, time
print(*sys.argv[1:], os.environ["ROOT"], os.getcwd(), flush=True)
time.sleep(60)
"""


def test_a_program_has_its_own_arguments_environment_folder_and_end(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command, environment = [sys.executable, "-P", file, "word"], {"ROOT": str(tmp_path)}
    process = PlaybookProcess(
        command, cwd="/", env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == f"word {tmp_path} /\n"
    assert below(tmp_path) == [process.pid], "what runs below a folder is found, and ended with the test"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
