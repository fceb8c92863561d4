"""The reader of Hugging Face's log against the Trainer itself: what is read is what the Trainer says it measured."""

import json
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import outputs

from tests.kit.needs import ROOT, lacking
from tests.kit.runner import stage

PYTHON = ROOT / ".venv-node" / "bin" / "python"
PROGRAM = """
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


@pytest.mark.slow  # imports PyTorch and transformers
def test_the_log_of_a_real_trainer(node, tmp_path):
    if not [*ROOT.glob(".venv-node/lib/python3*/site-packages/transformers")]:
        lacking("needs transformers in .venv-node (make setup)")
    history_file: Path = tmp_path / "history.json"
    command = [str(PYTHON), "-c", PROGRAM, str(history_file)]
    node.put_plan(
        stage("tune", command, output=outputs.readers("huggingface"), timeout_seconds=300), deadline_seconds=300
    )
    node.call("run")
    record = node.record("tune")
    assert record["state"] == "success", record["message"]
    *steps, summary = json.loads(history_file.read_text())
    found = {metric["name"]: metric["value"] for metric in record["metrics"]}
    curves = {curve["name"]: curve for curve in json.loads(node.files.series("tune").read_text())["series"]}
    assert curves["tune_loss"]["y"] == pytest.approx([step["loss"] for step in steps], rel=1e-3)
    assert curves["tune_gradient_norm"]["y"] == pytest.approx([step["grad_norm"] for step in steps], rel=1e-3)
    assert found["tune_loss_last"] == pytest.approx(steps[-1]["loss"], rel=1e-3)
    assert found["tune_loss_mean"] == pytest.approx(summary["train_loss"], rel=1e-3)
    assert found["tune_samples_per_second"] == pytest.approx(summary["train_samples_per_second"], rel=1e-2)
    assert found["tune_loss_nonfinite_count"] == 0
