"""When a training ends, and how many steps to take before looking again. Pure; rank 0 decides for all."""

from __future__ import annotations

from dataclasses import dataclass

from .config import DEFAULT_SECONDS, TrainingConfig

WINDOW_SECONDS = 1.0
MAX_WINDOW_STEPS = 100


@dataclass(frozen=True)
class TrainingBounds:
    """Whatever comes first: so many steps (warm-up included) or seconds after the warm-up. At least one is set."""

    warmup_steps: int
    max_steps: int | None
    seconds: float | None

    @classmethod
    def of(cls, config: TrainingConfig, steps_per_epoch: int, is_gpu: bool) -> TrainingBounds:
        limits = [config.steps, config.epochs and config.epochs * steps_per_epoch]
        max_steps = min((limit for limit in limits if limit), default=None)
        seconds = config.seconds or (None if max_steps else DEFAULT_SECONDS)
        warmup = 5 if is_gpu else 2
        return cls(warmup if max_steps is None else min(warmup, max_steps - 1), max_steps, seconds)

    def next_window(self, steps_done: int, measured_seconds: float, step_seconds: float) -> int:
        """Return how many steps to take before all ranks compare notes again; 0 ends the training.

        ``steps_done`` counts all steps, ``measured_seconds`` runs from the end of the warm-up, ``step_seconds`` is a
        recent step's time. At least one step follows the warm-up, however late it is.
        """
        if steps_done < self.warmup_steps:
            return (
                self.warmup_steps - steps_done if steps_done else 1
            )  # the very first may compile kernels for minutes: show it
        window = MAX_WINDOW_STEPS
        if step_seconds > 0:
            window = max(1, min(window, int(WINDOW_SECONDS / step_seconds)))
        if self.max_steps is not None:
            window = min(window, self.max_steps - steps_done)
        if self.seconds is not None and steps_done > self.warmup_steps:
            seconds_left = self.seconds - measured_seconds
            if seconds_left <= 0:
                return 0
            if step_seconds > 0:
                window = min(window, max(1, round(seconds_left / step_seconds)))
        return window
