"""What the requests came to: counts, tokens, latencies. A failed request adds to the failures and to nothing else."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Optional

from ..common.stats import ThinnedSample, percentile
from .client import CompletionAnswer

SAMPLE_SIZE = 100_000
KEPT_ERRORS = 50


class Tally:
    """Counts of a measurement; safe to use from the threads that ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done = 0
        self.failed = 0
        self.abandoned = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.with_usage = 0
        self.ttft = ThinnedSample(SAMPLE_SIZE)
        self.gaps = ThinnedSample(SAMPLE_SIZE)
        self._errors: Counter[str] = Counter()

    def add_answer(self, answer: CompletionAnswer) -> None:
        with self._lock:
            self.done += 1
            self.generated_tokens += answer.generated_tokens
            self.prompt_tokens += answer.prompt_tokens or 0
            self.with_usage += answer.has_usage
            if answer.ttft is not None:
                self.ttft.extend((answer.ttft,))
            self.gaps.extend(answer.gaps)

    def add_failure(self, reason: str) -> None:
        with self._lock:
            self.failed += 1
            if reason in self._errors or len(self._errors) < KEPT_ERRORS:
                self._errors[reason] += 1

    def add_abandoned(self, count: int) -> None:
        with self._lock:
            self.abandoned += count

    def token_source(self) -> str:
        """Return where the token counts come from."""
        if self.with_usage == self.done:
            return "usage reported by the server"
        return "content chunks" if self.with_usage == 0 else "usage where the server reported it, else content chunks"

    def most_frequent_error(self) -> Optional[str]:
        with self._lock:
            return self._errors.most_common(1)[0][0] if self._errors else None

    def metrics(self, seconds: float) -> list[tuple[str, float, str]]:
        """Return (name, value, unit) of what was measured in `seconds`; an unmeasured figure is absent."""
        with self._lock:
            figures: list[tuple[str, Optional[float], str]] = [
                ("inference_running_seconds", seconds, "seconds"),
                ("inference_requests_done_count", self.done, "count"),
                ("inference_requests_failed_count", self.failed, "count"),
                ("inference_requests_abandoned_count", self.abandoned, "count"),
                ("inference_prompt_tokens_count", self.prompt_tokens if self.with_usage else None, "count"),
                ("inference_generated_tokens_count", self.generated_tokens, "count"),
                ("inference_ttft_p50_seconds", _percentile(self.ttft, 50), "seconds"),
                ("inference_ttft_p99_seconds", _percentile(self.ttft, 99), "seconds"),
                ("inference_itl_p50_seconds", _percentile(self.gaps, 50), "seconds"),
                ("inference_itl_p99_seconds", _percentile(self.gaps, 99), "seconds"),
            ]
            if seconds > 0:
                figures.append(("inference_tokens_per_second", self.generated_tokens / seconds, "tokens/s"))
                figures.append(("inference_requests_per_second", self.done / seconds, "requests/s"))
        return [(name, value, unit) for name, value, unit in figures if value is not None]


def _percentile(sample: ThinnedSample, percent: float) -> Optional[float]:
    return percentile(sample.kept, percent) if sample.kept else None
