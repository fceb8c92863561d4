"""The readers of Hugging Face's and DeepSpeed's logs against these programs: what is read is what they measured."""

import json
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

from tests.kit.needs import ROOT, lacking, needs_deepspeed
from tests.kit.runner import stage

PYTHON = ROOT / ".venv-node" / "bin" / "python"
TRAINER = """
import json, sys, torch
from transformers import Trainer, TrainingArguments

class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        guess = self.layer(x).squeeze(-1)
        return {"loss": ((guess - labels) ** 2).mean(), "logits": guess}

data = [{"x": torch.full((4,), float(n % 7)), "labels": float(n % 3)} for n in range(64)]
arguments = TrainingArguments(
    "out", max_steps=8, per_device_train_batch_size=4, logging_steps=1, report_to=[], use_cpu=True, save_strategy="no"
)
trainer = Trainer(Tiny(), arguments, train_dataset=data)
trainer.log_metrics("train", trainer.train().metrics)
json.dump(trainer.state.log_history, open(sys.argv[1], "w"))
"""

TIMER = """
import json, sys, time
from types import SimpleNamespace
from deepspeed.utils.logging import logger, set_log_level_from_string
from deepspeed.utils.timer import ThroughputTimer

set_log_level_from_string("info")
config = SimpleNamespace(enabled=True, synchronized=False)
timer = ThroughputTimer(config, batch_size=8, start_step=2, steps_per_output=2, logging_fn=logger.info)
for _ in range(20):
    timer.start()
    time.sleep(0.02)
    timer.stop(global_step=True)
json.dump(timer.avg_samples_per_sec(), open(sys.argv[1], "w"))
"""


@pytest.mark.slow  # imports PyTorch and transformers
def test_the_log_of_a_real_trainer(node, tmp_path):
    if not [*ROOT.glob(".venv-node/lib/python3*/site-packages/transformers")]:
        lacking("needs transformers in .venv-node (make setup)")
    history_file: Path = tmp_path / "history.json"
    command = [str(PYTHON), "-c", TRAINER, str(history_file)]
    node.put_plan(
        stage("tune", command, output=plans.readers("huggingface"), timeout_seconds=300), deadline_seconds=300
    )
    node.call("run")
    record = node.record("tune")
    assert record["state"] == "success", record["message"]
    *steps, summary = json.loads(history_file.read_text())
    found = {metric["name"]: metric["value"] for metric in record["metrics"]}
    curves = {curve["name"]: curve for curve in json.loads(node.files.result("series/tune").read_text())["series"]}
    assert curves["tune_loss"]["y"] == pytest.approx([step["loss"] for step in steps], rel=1e-3)
    assert curves["tune_gradient_norm"]["y"] == pytest.approx([step["grad_norm"] for step in steps], rel=1e-3)
    assert found["tune_loss_last"] == pytest.approx(steps[-1]["loss"], rel=1e-3)
    assert found["tune_loss_mean"] == pytest.approx(summary["train_loss"], rel=1e-3)
    assert found["tune_samples_per_second"] == pytest.approx(summary["train_samples_per_second"], rel=1e-2)
    assert found["tune_loss_nonfinite_count"] == 0


@pytest.mark.slow  # imports PyTorch and DeepSpeed
def test_the_log_of_deepspeeds_own_timer(node, tmp_path):
    needs_deepspeed()
    mean_file = tmp_path / "mean.json"
    command = [str(PYTHON), "-c", TIMER, str(mean_file)]
    node.put_plan(stage("zero", command, output=plans.readers("deepspeed"), timeout_seconds=300), deadline_seconds=300)
    node.call("run")
    record = node.record("zero")
    assert record["state"] == "success", record["message"]
    found = {metric["name"]: metric["value"] for metric in record["metrics"]}
    (curve,) = json.loads(node.files.result("series/zero").read_text())["series"]
    assert (curve["name"], curve["x"]) == ("zero_samples_per_second", [4, 6, 8, 10, 12, 14, 16, 18, 20])
    # Its mean is over all steps, the figure is the median of the printed ones: alike within what a busy machine adds.
    assert found["zero_samples_per_second"] == pytest.approx(json.loads(mean_file.read_text()), rel=0.5)
    assert min(curve["y"]) <= found["zero_samples_per_second"] <= max(curve["y"])
    assert found["zero_steps_count"] == 20
