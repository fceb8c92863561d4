"""Share the makers of the verdict's tests and of planted secrets."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "unit" / "verdict"), str(TESTS / "integration")]
