"""Requests at a set concurrency: each thread asks, waits for the whole answer, asks again. And what they came to."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable

from ..common.stats import ThinnedSample, percentile
from .client import CompletionAnswer, RequestError

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
SAMPLE_SIZE = 100_000
KEPT_ERRORS = 50


class Tally:
    """Counts of a measurement; safe to use from the threads that ask. A failed request adds to the failures alone."""

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

    def most_frequent_error(self) -> str | None:
        with self._lock:
            return self._errors.most_common(1)[0][0] if self._errors else None

    def metrics(self, seconds: float) -> list[tuple[str, float, str]]:
        """Return (name, value, unit) of what was measured in `seconds`; an unmeasured figure is absent."""
        with self._lock:
            figures: list[tuple[str, float | None, str]] = [
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


def _percentile(sample: ThinnedSample, percent: float) -> float | None:
    return percentile(sample.kept, percent) if sample.kept else None


class RequestLoad:
    """`concurrency` threads that call `ask` with 1, 2, 3, ... until stopped or `limit` requests were made."""

    def __init__(
        self, ask: Callable[[int], CompletionAnswer], tally: Tally, concurrency: int, limit: int | None
    ) -> None:
        self._ask = ask
        self._tally = tally
        self._limit = limit
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"requests {index}", daemon=True) for index in range(concurrency)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self, seconds: float) -> None:
        """Ask nothing new; what is under way and does not end within `seconds` counts as abandoned, nothing else."""
        self._stopping.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._closed = True
        self._tally.add_abandoned(sum(thread.is_alive() for thread in self._threads))

    def _work(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            number = next(self._numbers)
            if self._limit is not None and number > self._limit:
                return
            try:
                answer = self._ask(number)
            except RequestError as error:
                print(f"request {number} failed: {error}", flush=True)
                self._count(self._tally.add_failure, str(error))
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                self._count(self._tally.add_answer, answer)
                pause = FIRST_PAUSE_SECONDS

    def _count(self, add: Callable, value: CompletionAnswer | str) -> None:
        with self._lock:
            if not self._closed:
                add(value)
