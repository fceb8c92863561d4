"""Batch files of a model repository on a Slurm cluster of real daemons: in gpuval's jobs, with their own steps."""

import csv
import json

import pytest

from tests.kit.gang_fleet import RUN_SECONDS
from tests.kit.slurm_bed import SlurmBed
from tests.kit.slurm_fleet import SlurmFleet

#: What others have in theirs: short and long options, a remark, a file beside it, steps on one node and on all.
TOGETHER = """\
#!/bin/bash
#SBATCH --job-name=together --output="/nowhere/%j.out"
#SBATCH -N 2 -t 1:00:00        # two nodes
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h200:8

set -euo pipefail
test "$SLURM_NNODES" = 2
test "$PWD" = "$SLURM_SUBMIT_DIR"
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    srun --nodes=1 --ntasks=1 --nodelist="$node" hostname
done | sort | paste -sd, > alone.txt
srun bash -c 'echo "$(hostname) $CUDA_VISIBLE_DEVICES" >> "$SLURM_SUBMIT_DIR/task.$SLURM_PROCID"'
echo "alone: $(cat alone.txt); tasks: $(cat task.* | sort | paste -sd';'); $1 $(cat ../data/factor)"
printf 'model,performance,metric\\nserve,%d,tasks\\n' "$(ls task.* | wc -l)" > results.csv
"""
ALONE = "#!/bin/bash\n#SBATCH --cpus-per-task=1\necho performance: $(srun hostname | wc -l) tasks\n"
MODELS = [
    {"name": "together", "scripts": "scripts/run/together.slurm", "multiple_results": "results.csv", "args": "--fast"},
    {"name": "alone", "scripts": "scripts/run/alone.sh"},
    {"name": "contained", "scripts": "scripts/run/contained.sh"},
]
FILES = {
    "models.json": json.dumps(
        [{"dockerfile": "docker/base", "n_gpus": "-1", "tags": ["pyt"], **one} for one in MODELS]
    ),
    "scripts/run/together.slurm": TOGETHER,
    "scripts/run/alone.sh": ALONE,
    "scripts/run/contained.sh": "echo performance: 1 x\n",
    "scripts/data/factor": "from beside\n",
}


@pytest.fixture
def fleet(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    root = tmp_path / "fleet"
    (root / "state").mkdir(parents=True)
    settings = {"gpuval_mad_repository": str(tmp_path / "repository")}
    with SlurmBed(tmp_path / "bed", options=["--volume", f"{root}/state:{root}/state"]) as bed:
        fleet = SlurmFleet(root, bed, settings=settings)
        yield fleet
        fleet.close()


def rows(fleet):
    with (fleet.root / "results/latest/perf.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_batch_files_run_in_jobs_of_gpuval(fleet):
    done = fleet.play("gpuval.fleet.mad", seconds=2 * RUN_SECONDS)
    assert "left out: models.json: model contained: scripts: contained.sh runs in a container" in done.told, str(done)
    unused = "scripts/run/together.slurm: #SBATCH job-name, output, t: no effect"
    assert unused in done.told
    found = sorted((row["model"], row["performance"], row["metric"], row["status"]) for row in rows(fleet))
    one = ("alone", "1", "tasks", "SUCCESS")
    assert found == [one, one, ("together_serve", "2", "tasks", "SUCCESS")], str(done)
    assert {row["deployment_type"] for row in rows(fleet)} == {"slurm"}
    (log,) = (fleet.root / "results/latest/nodes").glob("gpu-1/mad_together*.log")
    gpus = "0,1,2,3,4,5,6,7"
    said = f"alone: gpu-1,gpu-2; tasks: gpu-1 {gpus};gpu-2 {gpus}; --fast from beside"
    assert said in log.read_text(), log.read_text()
    copies = [*(fleet.root / "state/mad").rglob("task.*")]
    assert copies == [], "the job's own copy of the repository went with it"
