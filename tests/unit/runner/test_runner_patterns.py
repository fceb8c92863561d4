import math

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import stages
from gpuval_runner.patterns import PatternReader, base_unit, read_number
from gpuval_runner.plan import OutputPattern

PERFORMANCE = OutputPattern(pattern=stages.PERFORMANCE, name="performance")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.3", 12.3),
        ("1.5e3", 1500.0),
        ("1.5E-3", 0.0015),
        ("-2", -2.0),
        ("+.5", 0.5),
        ("3.", 3.0),
        ("1,234.5", 1234.5),
        ("12,345,678", 12345678.0),
        ("1,5", None),
        ("1,2345", None),
        ("1234,567", None),
        ("0x10", None),
        ("", None),
        ("٣", None),
        ("1_000", None),
    ],
)
def test_numbers(text, value):
    assert read_number(text) == value


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-Infinity"])
def test_words_for_no_number(text):
    assert not math.isfinite(read_number(text))


def read(output: str, *patterns: OutputPattern, pieces: int = 7) -> dict:
    reader = PatternReader(patterns or [PERFORMANCE], "training")
    data = output.encode()
    for start in range(0, len(data), pieces):
        reader.feed(data[start : start + pieces])
    reader.finish()
    return {m["name"]: (m["value"], m["unit"]) for m in reader.metrics()}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("performance: 12.3 examples/sec", {"performance_samples_per_second": (12.3, "samples/s")}),
        ("performance: 1.5e3 tokens/s", {"performance_tokens_per_second": (1500.0, "tokens/s")}),
        ("performance:  1,234.5 tok/s", {"performance_tokens_per_second": (1234.5, "tokens/s")}),
        ("performance: 250 ms", {"performance_seconds": (0.25, "seconds")}),
        ("performance: 8 Gbps", {"performance_bytes_per_second": (1e9, "bytes/s")}),
        ("performance: 2 GB/s", {"performance_bytes_per_second": (2e9, "bytes/s")}),
        ("performance: 1 GiB/s", {"performance_bytes_per_second": (2.0**30, "bytes/s")}),
        ("performance: 395 TFLOPS", {"performance_tflops": (395.0, "TFLOP/s")}),
        ("performance: 50 %", {"performance_ratio": (0.5, "ratio")}),
        ("performance: 7 widgets/fortnight", {"performance": (7.0, "widgets/fortnight")}),
        ("performance: nan tokens/s", {"performance_tokens_per_second": (None, "tokens/s")}),
        ("\x1b[32mperformance: 3 W\x1b[0m", {"performance_watts": (3.0, "W")}),
        ("performance: 14164/s UNIT", {"performance": (14164.0, "UNIT/s")}),
        ("performance: 14,164.5/sec examples", {"performance_samples_per_second": (14164.5, "samples/s")}),
        ("performance: 5/s tokens/s", {"performance": (5.0, "tokens/s/s")}),
        ("performance: 3/4 W", {}),
        ("performance: 1,5 W", {}),
        ("0 FAILED, 12 passed", {}),
    ],
)
def test_the_performance_line(line, expected):
    assert read(f"noise\n{line}\nmore\n") == expected


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ("performance: samples_per_second", ["performance: samples_per_second"]),
        ("performance:  samples_per_second", ["performance: samples_per_second"]),
        ("performance: $THROUGHPUT samples_per_second", ["performance: $THROUGHPUT samples_per_second"]),
        ("performance: {{ value }} samples/s", ["performance: {{ value"]),
        ("performance: None samples/s", ["performance: None samples/s"]),
        ("performance: 12.3", ["performance: 12.3"]),
        ("performance: samples/s\nperformance: 3 W", []),
        ("performance: 3 W\nperformance: samples/s", []),
        ("performance: nan W", []),
        ("nothing", []),
    ],
)
def test_a_line_without_a_figure_is_named(output, named):
    reader = PatternReader([PERFORMANCE], "training")
    reader.feed(output.encode())
    reader.finish()
    assert reader.lines_without_figure() == named


def test_a_secret_is_hidden_in_a_line_without_a_figure():
    reader = PatternReader([PERFORMANCE], "training", hide=lambda text: text.replace("hunter2", "***"))
    reader.feed(b"performance: hunter2 samples/s\n")
    assert reader.lines_without_figure() == ["performance: *** samples/s"]


def test_the_last_match_wins_and_progress_bars_are_lines():
    assert read("performance: 1 W\rperformance: 2 W\nperformance: 3 W") == {"performance_watts": (3.0, "W")}


@pytest.mark.parametrize(
    ("line", "value"), [("rate=1.5e3", 1500.0), ("rate=1,234.5", 1234.5), ("rate=1,5", None), ("rate=1.2.3", None)]
)
def test_a_pattern_that_stops_inside_a_number_still_reads_it_whole(line, value):
    found = read(line, OutputPattern(r"rate=(?P<value>[\d.]+)", name="rate"))
    assert found == ({} if value is None else {"rate": (value, "")})


def test_names_and_units_come_from_groups_else_from_the_declaration():
    pattern = OutputPattern(r"(?P<name>[\w ]+): (?P<value>\S+)(?: (?P<unit>\S+))?$", name="x", unit="ms")
    assert read("Step Time P50: 12\nstep_time_seconds: 3 s\n", pattern) == {
        "step_time_p50_seconds": (0.012, "seconds"),
        "step_time_seconds": (3.0, "seconds"),
    }


def test_without_a_name_the_stage_gives_it():
    assert read("v 3", OutputPattern(r"v (?P<value>\d)")) == {"training_performance": (3.0, "")}


def test_memory_is_bounded():
    reader = PatternReader([OutputPattern(r"(?P<name>\w+)=(?P<value>\d+)")], "s")
    for i in range(1000):
        reader.feed(f"n{i}=1\n".encode())
    assert len(reader.metrics()) == 256
    for _ in range(100):
        reader.feed(b"x" * 65536)
    assert len(reader._rest) <= 4096


@pytest.mark.parametrize(
    ("unit", "factor"), [("Mb/s", 125_000.0), ("MB/s", 1e6), ("Kbps", 125.0), ("GB", 1e9), ("Gb", None)]
)
def test_small_b_is_a_bit_and_capital_b_a_byte(unit, factor):
    found = base_unit(unit)
    assert (found.factor if found else None) == factor
