"""Print the tag of optimum-habana for the Gaudi driver of this node; fails where the image has another release."""

import csv
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

TABLE = Path(__file__).with_name("gaudi_software.csv")


def release(version: str) -> str:
    """The release of a version of driver, firmware or package: 1.22 for 1.22.0-fw-61.3.2."""
    return ".".join(version.split(".")[:2])


def main() -> int:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    known = {row["release"]: row for row in csv.DictReader(lines)}
    query = ["hl-smi", "-Q", "driver_version", "-f", "csv,noheader"]
    try:
        answer = subprocess.run(query, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        return fail(f"hl-smi does not answer ({error}): check the driver, and that the image has hl-smi")
    driver = answer[0] if answer else "none"
    wanted = known.get(release(driver))
    if wanted is None:
        return fail(f"no Gaudi software is known for driver {driver}: add a line to gaudi_software.csv")
    try:
        present = metadata.version("habana-torch-plugin")
    except metadata.PackageNotFoundError:
        present = "none"
    if release(present) != wanted["release"]:
        return fail(
            f"driver {driver} needs Gaudi software {wanted['release']}, this image has {present}: set the reference of "
            f"gpuval_images.training to {wanted['image']}"
        )
    print(wanted["optimum_habana"])
    return 0


def fail(message: str) -> int:
    Path(os.environ["GPUVAL_RESULT_FILE"]).write_text(
        json.dumps({"state": "failure", "message": message}), encoding="utf-8"
    )
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
