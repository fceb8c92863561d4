"""What a program wrote last, though launchers, frames and gpuval itself print below it."""

import pytest
from gpuval_node.root_cause import last_words

TORCHRUN = """\
loading shard 7
my data shard 7 has 12 columns of 13
E1128 12:00:00.000000 4242 torch/elastic/api.py:869] failed (exitcode: 3) local_rank: 0 (pid: 4243) of binary: python
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/torch/distributed/launcher/api.py", line 269, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_12:00:00
  host      : node-1
  rank      : 0 (local_rank: 0)
  exitcode  : 3 (pid: 4243)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
MPIRUN = """\
my data shard 7 has 12 columns of 13
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[30211,1],0]
  Exit code:    3
--------------------------------------------------------------------------
Received signal 15; terminating.
"""
LAST = "my data shard 7 has 12 columns of 13"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TORCHRUN, LAST),
        (MPIRUN, LAST),
        (f"{LAST}\n=====\n\n", LAST),
        (f"=====\nloss 3.2\n{LAST}\n=====\n", LAST),  # a frame of the program's own
        (f"== step train (1 of 1)\n{LAST}\n\n", LAST),
        ("epoch 1\n== step train (2 of 2)\n", ""),
        ("  indented\n", "  indented"),
        ("Received signal 15; terminating.\n", "Received signal 15; terminating."),
        ("", ""),
    ],
)
def test_the_last_line_of_the_work_is_found_above_what_others_say(text, words):
    assert last_words(text) == words
