"""Entry point of ``python -m gpuval_runner``."""

import sys

from gpuval_runner.cli import main

if __name__ == "__main__":
    sys.exit(main())
