import sys

from ..common.result import run_workload
from .program import main

if __name__ == "__main__":
    sys.exit(run_workload(main))
