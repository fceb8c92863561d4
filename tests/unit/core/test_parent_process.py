import os
import signal
import time

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.processes import AbandonedError, Parent


def test_a_parent_that_is_there_is_no_trouble():
    Parent().check()


def test_a_worker_tells_that_what_started_it_was_killed():
    reads, writes = os.pipe()
    playbook = os.fork()
    if playbook == 0:
        worker = os.fork()
        if worker == 0:
            os.setsid()  # as Ansible's workers do
            parent = Parent()
            os.write(writes, b"begun ")
            for _ in range(200):
                try:
                    parent.check()
                except AbandonedError:
                    os.write(writes, b"abandoned")
                    break
                time.sleep(0.05)
            os._exit(0)
        time.sleep(60)
        os._exit(0)
    os.close(writes)
    told = os.read(reads, 6)
    os.kill(playbook, signal.SIGKILL)
    os.waitpid(playbook, 0)
    while piece := os.read(reads, 100):
        told += piece
    os.close(reads)
    assert told == b"begun abandoned"
