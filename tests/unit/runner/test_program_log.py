"""The readers of programs' logs, against lines as the programs print them: formats and figures of real runs."""

import random
import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans
from gpuval_runner.patterns import MAX_CURVES, MAX_LINE, MAX_POINTS, PatternReader, ProgramLog, base_unit
from gpuval_runner.plan import OutputReader, parse

from tests.kit.runner import plan, stage


def reader(name: str) -> OutputReader:
    """A shipped reader, through the plan as the runner gets it."""
    return parse(plan(stage("x", output=plans.readers(name)))).stages[0].output[0]


class Read:
    """A log read in pieces of some bytes."""

    def __init__(self, output: str | bytes, *names: str, pieces: int = 997, seconds: float = 0.0) -> None:
        data = output.encode() if isinstance(output, str) else output
        times = iter(range(10**9))
        logs = [ProgramLog(reader(name), "x", lambda: next(times) * seconds) for name in names]
        lines = PatternReader([], "x", logs)
        for start in range(0, len(data), pieces):
            lines.feed(data[start : start + pieces])
        lines.finish()
        self.metrics = {(m["name"], m["scope"]): (m["value"], m["unit"]) for m in lines.metrics()}
        self.all_curves = {(c["name"], c["scope"]): c for c in lines.curves()}

    def __getitem__(self, name: str) -> tuple:
        return self.metrics[f"x_{name}", "node"]

    def value(self, name: str) -> float:
        return self[name][0]

    def curve(self, name: str, scope: str = "node") -> list[tuple]:
        curve = self.all_curves[f"x_{name}", scope]
        return list(zip(curve["x"], curve["y"], strict=True))

    @property
    def names(self) -> set[str]:
        return {name.removeprefix("x_") for name, _ in self.metrics}


def megatron(step: int, ms: str = "5361.6", loss: str = "1.818812E+00", extra: str = "", **more: str) -> str:
    norm, skipped, nan = more.get("norm", "1.300"), more.get("skipped", "0"), more.get("nan", "0")
    lm = f"lm loss: {loss} | " if loss else ""
    return (
        f" [2025-04-06 03:02:{step % 60:02d}] iteration {step:8d}/     100 | consumed samples: {step * 128:12d} | "
        f"elapsed time per iteration (ms): {ms} | {extra}learning rate: 1.420000E-05 | global batch size:   128 | {lm}"
        f"load_balancing_loss: 1.013377E+00 | loss scale: 1.0 | grad norm: {norm} | num zeros: 0.0 | "
        f"number of skipped iterations: {skipped:>3} | number of nan iterations: {nan:>3} |\n"
    )


TFLOPS = "throughput per GPU (TFLOP/s/GPU): 243.6 | "


def test_megatron():
    steps = [megatron(n, ms=f"{5000 + n}.5", loss=f"{3 - n / 10:.6E}", extra=TFLOPS) for n in range(1, 11)]
    found = Read("starting\n" + "".join(steps), "megatron")
    assert found["step_seconds"] == (pytest.approx(5.0070, abs=1e-4), "seconds")  # of 3 to 10: 2 are warm-up
    assert found["gpu_tflops"] == (243.6, "TFLOP/s")
    assert found["loss_first"] == (2.9, "loss")
    assert found["loss_last"] == (2.0, "loss")
    assert found["loss_nonfinite_count"] == (0, "count")
    assert found["skipped_steps_count"] == found["nan_steps_count"] == (0, "count")
    assert found["steps_count"] == (10, "count")
    assert found["gradient_norm_max"] == (1.3, "norm")
    assert found.curve("loss")[:2] == [(1, 2.9), (2, 2.8)]
    assert found.curve("step_seconds")[9] == (10, pytest.approx(5.0105))


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        # ROCm's Megatron-LM, then Primus of 2025 with present and mean values, then Primus of 2026
        (
            "mem usages: 0.5462 | throughput per GPU (TFLOP/s/GPU): 441.4 | tokens/GPU/s: 9876.5 | ",
            {"memory_max_ratio": 0.5462, "gpu_tflops": 441.4, "gpu_tokens_per_second": 9876.5},
        ),
        (
            (
                "mem usages: 0.8131 | throughput per GPU (TFLOP/s/GPU): 57.6 | "
                "Tokens per second per GPU (Tok/s/GPU):   2645.8 | "
            ),
            {"memory_max_ratio": 0.8131, "gpu_tflops": 57.6, "gpu_tokens_per_second": 2645.8},
        ),
        (
            (
                "rocm mem usage/free/total/usage_ratio: 99.07GB/92.92GB/191.98GB/51.60% | throughput per GPU "
                "(TFLOP/s/GPU): 92.8/90.8 | tokens per GPU (tokens/s/GPU): 5134.5/5026.5 | "
            ),
            {"device_memory_max_bytes": 99.07 * 2**30, "gpu_tflops": 92.8, "gpu_tokens_per_second": 5134.5},
        ),
        (
            (
                "hip mem usage/free/total/usage_ratio: 153.81GB/102.17GB/255.98GB/60.09% | compute per GPU "
                "(TFLOP/s/GPU): 615.5 (avg 615.4) | tokens/s/GPU inst/harmonic mean: 11941.8/11940.1 | "
            ),
            {"device_memory_max_bytes": 153.81 * 2**30, "gpu_tflops": 615.5, "gpu_tokens_per_second": 11941.8},
        ),
        # Megatron-DeepSpeed
        (
            "samples per second: 12.345 | tokens per gpu per second (tgs): 3160.3 | TFLOPs: 51.20 | ",
            {"samples_per_second": 12.345, "gpu_tokens_per_second": 3160.3, "gpu_tflops": 51.2},
        ),
    ],
)
def test_forks_of_megatron(extra, expected):
    found = Read(megatron(1, ms="1595.5/1630.1", extra=extra), "megatron")
    assert {name: found.value(name) for name in expected} == pytest.approx(expected)
    assert found.value("step_seconds") == pytest.approx(1.5955)


def test_megatron_that_counts_in_seconds():
    line = (
        " iteration      20/  95 | consumed samples: 40960 | elapsed time per iteration (s): 105.32 | lm loss: 7.1 |\n"
    )
    found = Read(line, "megatron")
    assert found["step_seconds"] == (105.32, "seconds")
    assert found.curve("step_seconds") == [(20, 105.32)]


def test_primus_prints_colours_inside_its_prefix():
    line = "\x1b[32m[20251202 09:12:08]\x1b[0m[\x1b[36mrank-7/8\x1b[0m][\x1b[1mINFO \x1b[0m] [-----trainer.py:2560] : "
    found = Read(line + megatron(126, ms="13372.8/13364.7", loss="6.548988E-03").lstrip(), "megatron")
    assert found.value("step_seconds") == pytest.approx(13.3728)
    assert found.curve("loss") == [(126, 0.006548988)]


def test_megatron_leaves_out_a_loss_that_is_nan_and_counts_the_iteration():
    log = megatron(1) + megatron(2, loss="", norm="nan", nan="1") + megatron(3, skipped="1", norm="inf")
    found = Read(log, "megatron")
    assert (found.value("nan_steps_count"), found.value("skipped_steps_count")) == (1, 1)
    assert [step for step, _ in found.curve("loss")] == [1, 3]
    assert found.value("gradient_norm_nonfinite_count") == 2
    assert found.value("gradient_norm_max") == 1.3
    assert found.curve("gradient_norm") == [(1, 1.3), (2, None), (3, None)]


def test_the_memory_of_megatrons_ranks_also_where_two_lines_ran_together():
    def memory(rank: int, most: float, end: str) -> str:
        return (
            f"[Rank {rank}] (after 1 iterations) memory (MB) | allocated: 9334.37 | max allocated: {most} | "
            f"reserved: 10998.0 | max reserved: 10998.0{end}"
        )

    log = megatron(1) + memory(4, 10606.5, "\n") + memory(2, 12680.25, "") + memory(6, 10850.5, "\n\n")
    found = Read(log + memory(0, 15754.0, "\n"), "megatron")
    assert {scope: value for (name, scope), (value, _) in found.metrics.items() if name == "x_peak_memory_bytes"} == {
        "rank:4": 10606.5 * 2**20,
        "rank:2": 12680.25 * 2**20,
        "rank:0": 15754.0 * 2**20,
    }


def test_a_line_of_megatron_that_was_wrapped():
    first, rest = megatron(7).split("learning rate")
    found = Read(first + "\n learning rate" + rest, "megatron")
    assert found.curve("loss") == [(7, 1.818812)]


def test_the_validation_of_megatron():
    line = " validation loss at iteration 10 | lm loss value: 2.345678E+00 | lm loss PPL: 1.044022E+01 | \n"
    found = Read(megatron(10) + "-" * 90 + "\n" + line, "megatron")
    assert found.value("validation_loss_last") == 2.345678
    assert found.value("loss_last") == 1.818812


DEEPSPEED = (
    "[2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0] step={0}, skipped={1}, "
    "lr=[4.99e-05, 4.99e-05], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
    "[2023-11-07 01:55:23,714] [INFO] [timer.py:260:stop] {2}, RunningAvgSamplesPerSec=25.025771473496132, "
    "CurrSamplesPerSec={3}, MemAllocated=4.32GB, MaxMemAllocated={4}GB\n"
)


@pytest.mark.parametrize("place", ["epoch=0/micro_step={0}/global_step={1}", "0/{1}"])
def test_deepspeed(place):
    log = "[2023-11-07 01:55:08,040] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 "
    log += "Skipping step. Attempted loss scale: 8192.0, reducing to 4096.0\n"
    for step, speed, memory in ((10, 20.5, 38.25), (20, 25.704280480541442, 38.5), (30, 25.9, 38.5)):
        log += DEEPSPEED.format(step, 4, place.format(4 * step, step), speed, memory)
    found = Read(log, "deepspeed")
    assert found["samples_per_second"] == (pytest.approx(25.80214), "samples/s")
    assert found.curve("samples_per_second")[0] == (10, 20.5)
    assert found["peak_memory_bytes"] == (38.5 * 2**30, "bytes")
    assert found.value("skipped_steps_count") == 4
    assert found.value("steps_count") == 30


def test_deepspeeds_pipeline_engine():
    log = "steps: 190 loss: 5.5612 lm loss: 5.5210 moe loss: 0.0402 iter time (s): 0.950 samples/sec: 134.700\n"
    log += "steps: 200 loss: nan iter time (s): 0.936 samples/sec: 136.706\n"
    found = Read(log, "deepspeed")
    assert found.curve("loss") == [(190, 5.5612), (200, None)]
    assert found["loss_last"] == (None, "loss")
    assert found.value("loss_nonfinite_count") == 1
    assert found.value("step_seconds") == 0.936
    assert found.value("samples_per_second") == 136.706


def test_deepspeed_chat():
    line = (
        "Model Parameters: 1.429 B, Latency: 0.84s, TFLOPs: 60.62, Samples/sec: 9.52, Time/seq 0.11s, Batch Size: 8\n"
    )
    found = Read(line * 3, "deepspeed")
    assert (found.value("gpu_tflops"), found.value("step_seconds"), found.value("samples_per_second")) == (
        60.62,
        0.84,
        9.52,
    )


BAR = " 40%|████      | 4/10 [00:05<00:07,  1.20s/it]"


@pytest.mark.parametrize("quote", ["", "'"])
def test_the_trainer_of_hugging_face_in_version_4_and_5(quote):
    def report(**values: str) -> str:
        return "{" + ", ".join(f"'{name}': {quote}{value}{quote}" for name, value in values.items()) + "}"

    log = (
        f"\r{BAR}\r"
        + " " * 60
        + "\r"
        + report(loss="2.5190", grad_norm="4.159", learning_rate="6.667e-06", epoch="0.5")
    )
    log += f"\n\r{BAR}{report(loss='1.806', grad_norm='4.033', learning_rate='3.3e-06', epoch='1')}      \n"
    log += report(loss="0.0", grad_norm="nan", learning_rate="0.0", epoch="1.5") + "\n"
    log += report(eval_loss="1.117", eval_runtime="8.109", eval_samples_per_second="31.2", epoch="1.5") + "\n"
    log += report(
        train_runtime="148.9", train_samples_per_second="6.5", train_steps_per_second="0.034", train_loss="1.346"
    )
    log += "\n\r100%|██████████| 10/10 [02:28<00:00, 25.52s/it]\n"
    found = Read(log, "huggingface")
    assert found.curve("loss") == [(1, 2.519), (2, 1.806), (3, 0.0)]
    assert found.value("loss_nonfinite_count") == 0
    assert found.value("gradient_norm_nonfinite_count") == 1
    assert found["samples_per_second"] == (6.5, "samples/s")
    assert found["steps_per_second"] == (0.034, "steps/s")
    assert found["train_seconds"] == (148.9, "seconds")
    assert (found.value("loss_mean"), found.value("eval_loss_last")) == (1.346, 1.117)


def test_the_trainers_table_of_metrics():
    log = (
        "***** train metrics *****\n  epoch                    =        3.0\n  total_flos               =    12345GF\n"
    )
    log += "  train_loss               =     0.8319\n  train_runtime            = 0:57:36.45\n"
    log += "  train_samples_per_second =      6.486\n  train_steps_per_second   =      0.203\n"
    log += "  max_memory_allocated (GB)                   =       89.5\n"
    found = Read(log, "huggingface")
    assert (found.value("samples_per_second"), found.value("loss_mean")) == (6.486, 0.8319)
    assert found.value("peak_memory_bytes") == 89.5 * 2**30
    assert "train_seconds" not in found.names  # 0:57:36 is no number


def test_the_trainers_lines_wrapped_by_a_terminal():
    log = "{'train_runtime': '540.1', 'train_samples_per_second': '2.185',               \n"
    log += "  'train_steps_per_second': '0.296', 'train_loss': '0.24', 'epoch': '20'}     \n"
    found = Read(log, "huggingface")
    assert (found.value("train_seconds"), found.value("steps_per_second")) == (540.1, 0.296)


def titan(
    step: int, tps: str = "7,282", norm: str = "grad_norm:  0.8319  ", prefix: str = "", word: str = "tps"
) -> str:
    return (
        f"{prefix}[titan] 2026-05-18 16:04:46,338 - root - INFO - \x1b[31mstep: {step:2}  "
        f"\x1b[32mloss: {8 - step / 10:8.5f}"
        f"  \x1b[38;2;180;60;0m{norm}\x1b[38;2;54;234;195mmemory: 66.91GiB(37.51%)  \x1b[34m{word}: {tps}  "
        "\x1b[36mtflops: 1,314.69  \x1b[35mmfu: 13.99%\x1b[39m\n"
    )


def test_torchtitan():
    found = Read("".join(titan(n) for n in range(1, 5)), "torchtitan")
    assert found["gpu_tokens_per_second"] == (7282, "tokens/s")
    assert found["gpu_tflops"] == (1314.69, "TFLOP/s")
    assert found["mfu_ratio"] == (pytest.approx(0.1399), "ratio")
    assert found["peak_memory_bytes"] == (66.91 * 2**30, "bytes")
    assert found.curve("loss") == [(1, 7.9), (2, 7.8), (3, 7.7), (4, 7.6)]


def test_an_older_torchtitan():
    found = Read(titan(10, norm="", word="wps"), "torchtitan")
    assert found.value("gpu_tokens_per_second") == 7282
    assert "gradient_norm_max" not in found.names


def test_torchtitans_validation_is_not_a_step_of_training():
    line = "[titan] 2026-05-18 16:04:48,338 - root - INFO - validate step: 15  loss:  7.25000  "
    line += "memory: 70.91GiB(39.1%)  tps: 9,282\n"
    found = Read(titan(10) + line + titan(20), "torchtitan")
    assert [step for step, _ in found.curve("loss")] == [10, 20]
    assert found.value("validation_loss_last") == 7.25
    assert found.value("gpu_tokens_per_second") == 7282


def test_ranks_that_print_the_same_step_without_a_prefix_count_once():
    lines = [titan(step, tps=f"10,0{rank:02d}") for step in (1, 2, 3) for rank in range(8)]
    found = Read("".join(lines), "torchtitan")
    assert [step for step, _ in found.curve("loss")] == [1, 2, 3]


@pytest.mark.parametrize("prefix", ["[rank{}]:", "[default{}]: ", "[1,{}]<stdout>:", "{}: "])
def test_ranks_that_launchers_name(prefix):
    order = [(step, rank) for step in range(1, 6) for rank in range(4)]
    lines = [titan(step, tps=f"{10000 - rank}", prefix=prefix.format(rank)) for step, rank in order]
    found = Read("".join(lines), "torchtitan")
    speeds = {scope: value for (name, scope), (value, _) in found.metrics.items() if name == "x_gpu_tokens_per_second"}
    assert speeds == {"rank:0": 10000, "rank:1": 9999, "rank:2": 9998, "rank:3": 9997}
    assert len(found.curve("loss", "rank:3")) == 5


def test_one_rank_that_a_launcher_names_speaks_for_the_node():
    assert Read(titan(1, prefix="[rank7]:"), "torchtitan").value("gpu_tokens_per_second") == 7282


VLLM = (
    "Avg prompt throughput: {0} tokens/s, Avg generation throughput: {1} tokens/s, Running: {2} reqs, {3}: {4} reqs, "
    "GPU KV cache usage: {5}%, {6}\n"
)


@pytest.mark.parametrize(
    ("prefix", "waiting", "end"),
    [
        (
            "_AsyncLLMEngine pid=1974) INFO 01-25 11:26:53 llm_engine.py:706] ",
            "Swapped: 0 reqs, Pending",
            "CPU KV cache usage: 0.0%",
        ),
        ("INFO 11-25 11:26:53 metrics.py:455] ", "Swapped: 0 reqs, Pending", "CPU KV cache usage: 0.0%."),
        ("INFO 04-02 18:03:41 [loggers.py:87] Engine 000: ", "Waiting", "Prefix cache hit rate: 50.0%"),
        (
            "\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO 05-12 08:01:39 [loggers.py:271] Engine 000: ",
            "Waiting",
            "Prefix cache hit rate: 50.0%",
        ),
    ],
)
def test_vllm(prefix, waiting, end):
    speeds = [(0.0, 0.0, 0), (1069.7, 3.6, 2), (0.0, 1055.3, 18), (12068.8, 734.9, 33), (0.0, 0.0, 0)]
    lines = [prefix + VLLM.format(p, g, n, waiting, n // 2, 95.9, end) for p, g, n in speeds]
    found = Read("".join(lines), "vllm", seconds=10)
    assert found["generated_tokens_per_second"] == (734.9, "tokens/s")  # of the time with work
    assert found["generated_max_tokens_per_second"] == (1055.3, "tokens/s")
    assert (found.value("running_requests_max_count"), found.value("waiting_requests_max_count")) == (33, 16)
    assert found["kv_cache_max_ratio"] == (pytest.approx(0.959), "ratio")
    assert found.all_curves["x_generated_tokens_per_second", "node"]["x_unit"] == "seconds"
    assert len(found.curve("generated_tokens_per_second")) == 5
    assert ("prefix_cache_hit_ratio" in found.names) == ("Prefix" in end)


def test_vllm_engines_side_by_side():
    lines = [
        f"INFO [loggers.py:87] Engine {n:03d}: " + VLLM.format(1, 10 * n + 5, 1, "Waiting", 0, 1, "") for n in (0, 1)
    ]
    found = Read("".join(lines), "vllm")
    assert found.metrics["x_generated_tokens_per_second", "rank:1"] == (15, "tokens/s")


@pytest.mark.parametrize(
    "line", ["Model loading took 14.5 GiB memory and 281.2 seconds", "Loading model weights took 14.5 GB"]
)
def test_what_vllm_prints_at_its_start(line):
    log = f"INFO 06-01 21:40:51 [gpu_model_runner.py:5131] {line}\n"
    log += "INFO [kv_cache_utils.py:1229] GPU KV cache size: 30,960 tokens\n"
    log += "INFO [default_loader.py:262] Loading weights took 4.25 seconds\n"
    log += "INFO [gpu_model_runner.py:2048] Graph capturing finished in 20 secs, took 0.47 GiB\n"
    log += "INFO [core.py:171] init engine (profile, create kv cache, warmup model) took 47.2 seconds\n"
    found = Read(log, "vllm")
    assert found["weights_bytes"] == (14.5 * 2**30, "bytes")
    assert found.value("kv_cache_tokens_count") == 30960
    assert found.value("weights_load_seconds") == 4.25
    assert (found.value("graph_capture_seconds"), found.value("engine_init_seconds")) == (20, 47.2)


@pytest.mark.parametrize("total", ["Total Token throughput (tok/s):", "Total token throughput (tok/s):"])
def test_vllms_benchmark(total):
    rows = [
        ("Successful requests:", "100"),
        ("Benchmark duration (s):", "17.32"),
        ("Request throughput (req/s):", "5.77"),
        ("Output token throughput (tok/s):", "2241.42"),
        ("Peak output token throughput (tok/s):", "2811.00"),
        (total, "8147.03"),
        ("Mean TTFT (ms):", "5399.10"),
        ("Median TTFT (ms):", "6003.49"),
        ("P99 TTFT (ms):", "6013.25"),
        ("Median TPOT (ms):", "22.10"),
    ]
    log = "============ Serving Benchmark Result ============\n" + "".join(f"{a:<40} {b:<10}\n" for a, b in rows)
    found = Read(log, "vllm")
    assert found.value("requests_done_count") == 100
    assert (found.value("output_tokens_per_second"), found.value("total_tokens_per_second")) == (2241.42, 8147.03)
    assert (found.value("ttft_p50_seconds"), found.value("ttft_p99_seconds")) == pytest.approx((6.00349, 6.01325))
    assert found.value("tpot_p50_seconds") == pytest.approx(0.0221)
    assert Read("Throughput: 6.52 requests/s, 3205.11 total tokens/s\n", "vllm")["requests_per_second"] == (
        6.52,
        "requests/s",
    )


def test_two_programs_in_one_log_the_first_counts():
    log = DEEPSPEED.format(10, 0, "epoch=0/micro_step=10/global_step=10", 25.5, 38.5)
    log += "{'loss': 2.5, 'grad_norm': 1.5, 'epoch': 0.5}\n{'train_runtime': 10.0, 'train_samples_per_second': 24.0}\n"
    assert Read(log, "deepspeed", "huggingface").value("samples_per_second") == 25.5
    assert Read(log, "huggingface", "deepspeed").value("samples_per_second") == 24.0
    assert Read(log, "deepspeed", "huggingface").value("loss_last") == 2.5


def test_a_number_that_the_end_of_the_output_cut_is_left_out():
    cut = megatron(2, loss="2.5").split("E+00")[0].split("lm loss")[0]
    assert Read(megatron(1) + cut + "lm loss: 1.8", "megatron").curve("loss") == [(1, 1.818812)]
    assert Read(megatron(1) + megatron(2, loss="1.8"), "megatron").curve("loss")[1] == (2, 1.8)
    whole = Read(megatron(1) + cut + "lm loss: 1.8 |", "megatron")
    assert whole.curve("loss")[1] == (2, 1.8)


def test_of_a_line_beyond_the_limit_the_start_is_read():
    head = megatron(1).rstrip("\n")
    found = Read(head + "y" * 100_000 + " grad norm: 9.0 |\n" + megatron(2, norm="1.5"), "megatron")
    assert found.curve("gradient_norm") == [(1, 1.3), (2, 1.5)]
    number = "lm loss: 12345678"
    line = "x" * (MAX_LINE - len(number) + 4 - 1) + " " + number
    assert "loss_last" not in Read(line + "\n", "megatron").names  # only 1234 of it is in the line as it was read


@pytest.mark.parametrize("text", ["1,5", "1.2.3", "0:01:23", "--", "", "None", "tensor(2.1)"])
def test_what_is_no_number_is_left_out(text):
    assert "loss_last" not in Read(megatron(1, loss=text), "megatron").names


def test_a_step_that_is_trained_again_after_a_restart_counts():
    found = Read("".join(titan(n) for n in [*range(1, 31), *range(11, 31)]), "torchtitan")
    assert len(found.curve("loss")) == 50
    assert found.value("steps_count") == 30


def test_a_single_step_is_its_own_median():
    assert Read(megatron(1), "megatron").value("step_seconds") == pytest.approx(5.3616)


def test_the_first_steps_do_not_count():
    log = "".join(megatron(n, ms="90000.0" if n <= 10 else "1000.0") for n in range(1, 61))
    assert Read(log, "megatron").value("step_seconds") == 1.0


def test_of_a_long_training_the_curve_is_thinned_and_the_sums_are_exact():
    log = "".join(megatron(n, ms=f"{n}.0", skipped="1") for n in range(1, 10_001))
    found = Read(log, "megatron", pieces=65536)
    curve = found.curve("step_seconds")
    assert MAX_POINTS / 2 <= len(curve) <= MAX_POINTS
    assert curve[0] == (1, 0.001)
    assert {b[0] - a[0] for a, b in zip(curve, curve[1:], strict=False)} == {8}
    assert found.value("skipped_steps_count") == 10_000
    assert found.value("step_seconds") == pytest.approx(5.005, rel=0.01)
    assert found.value("steps_count") == 10_000


def test_the_memory_is_bounded_whatever_ranks_a_log_names():
    log = ProgramLog(reader("torchtitan"), "x")
    for rank in range(2000):
        log.take(f"[rank{rank}]: step: 1  loss: 2.0  tps: 3  tflops: 4  mfu: 5%  memory: 6GiB")
    assert len(log.curves()) <= MAX_CURVES
    assert len(log.metrics()) <= 4 * MAX_CURVES


HOSTILE = [
    "step: loss: " * 400,
    "lm loss" * 600,
    "lm loss: " + " " * 4000,
    "lm loss: " + "1" * 4000,
    "lm loss: " + "1," * 2000,
    "lm loss: " + "111," * 1000,
    "lm loss: 1e" + "9" * 4000,
    "elapsed time per iteration iteration " * 100,
    "[rank" * 800 + "lm loss: 1",
    "\x1b[" * 2000,
    "'loss'" + "'\"" * 2000,
    "iteration" + " " * 4000 + "1",
    "Avg generation throughput: " * 150 + "Running: Running: ",
    "\x00\xff\ufffd" * 1000,
]


@pytest.mark.parametrize("name", sorted(plans.shipped_readers()))
def test_hostile_lines_take_little_time_and_no_exception(name):
    rng = random.Random(name)
    text = "\n".join(rng.choice(HOSTILE) for _ in range(500))
    begun = time.process_time()
    found = Read(text, name, pieces=65536)
    assert time.process_time() - begun < 10, "20 ms a line: far more than a bounded reader needs"
    assert all(value is None or abs(value) < 1e300 for value, _ in found.metrics.values())


@pytest.mark.parametrize("name", sorted(plans.shipped_readers()))
def test_a_log_in_pieces_of_any_size_reads_the_same(name):
    log = (
        megatron(1)
        + titan(2)
        + "{'loss': 1.5, 'grad_norm': 2.0}\r"
        + "INFO Engine 000: "
        + VLLM.format(1, 2, 3, "Waiting", 4, 5, "")
    )
    log += DEEPSPEED.format(10, 1, "epoch=0/micro_step=10/global_step=10", 25.5, 38.5)
    whole = Read(log, name, pieces=len(log) * 4)
    assert whole.metrics
    for pieces in (1, 7, 100):
        assert Read(log, name, pieces=pieces).metrics == whole.metrics


@pytest.mark.parametrize("name", sorted(plans.shipped_readers()))
def test_names_end_with_the_base_unit(name):
    for value in reader(name).values:
        base = base_unit(value.unit)
        ending = (
            base.ending
            if base
            else {"steps/s": "steps_per_second", "requests/s": "requests_per_second"}.get(value.unit)
        )
        for metric, what in [*value.figures.items(), *([(value.curve, "curve")] if value.curve else [])]:
            if what == "nonfinite" or value.unit == "count":
                assert metric.endswith("_count"), metric
            elif ending:
                assert metric == ending or metric.endswith(f"_{ending}"), metric
            else:
                assert value.unit in ("loss", "norm"), f"{metric}: {value.unit} is no base unit"
                assert value.unit in metric
