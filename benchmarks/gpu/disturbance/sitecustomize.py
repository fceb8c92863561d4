"""In one rank of torchrun, once it uses its GPU: begin what ``trial.py`` asks for. Python imports this by its name."""

from __future__ import annotations

import os

SETTINGS = "TRIAL_DISTURBANCE"
"""Rank, multiprocessors (0: all), seconds held, mean seconds between, library, folder of notes."""


def begin(rank: str, blocks: str, hold: str, gap: str, library: str, folder: str) -> None:
    """Wait until this process has a CUDA context, then hold multiprocessors until it ends."""
    import ctypes
    import sys
    import time

    def has_context() -> bool:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        return getattr(cuda, "is_initialized", bool)()

    while not has_context():
        time.sleep(0.02)
    disturb = ctypes.CDLL(library).disturb
    disturb.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_double, ctypes.c_double, ctypes.c_char_p]
    note = os.path.join(folder, f"{os.getpid()}.json")  # noqa: PTH118 - pathlib takes longer to import
    error = disturb(int(rank), int(blocks), float(hold), float(gap), note.encode())
    print(f"the disturbance ended with CUDA error {error}", file=sys.stderr)


_settings = os.environ.get(SETTINGS, "").split(",")
if _settings[0] and _settings[0] == os.environ.get("LOCAL_RANK"):
    import threading

    threading.Thread(target=begin, args=_settings, daemon=True).start()
