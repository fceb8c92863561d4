import sys

from ..common.result import run_workload
from .program import main

sys.exit(run_workload(main))
