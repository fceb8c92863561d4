"""Digests are written into the user's file of variables, of which all else stays."""

from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import registry_images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts.images import ImagesError

OLD, NEW = (f"r.example:5000/p/gpuval-training@sha256:{digit * 64}" for digit in "01")
LOADING = f"r.example:5000/p/gpuval-loading@sha256:{'2' * 64}"
PATH = Path("group_vars/all.yml")
NAMED = f'  loading: {{reference: "{LOADING}"}}\n  training: {{reference: "{NEW}"}}\n'
BLOCK = """\
gpuval_images:
    # ours
    training:
        reference: {old} # old
        id:
{more}
# next
b: !vault |
  x
"""
SITE = """\
gpuval_images:
  inference: {{reference: vllm/vllm-openai:v1}} # theirs
  training: {{reference: {old}}}"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"gpuval_images:\n{NAMED}"),
        ("---\n", f"---\ngpuval_images:\n{NAMED}"),
        ("# mine\n", f"# mine\ngpuval_images:\n{NAMED}"),
        ("---\na: 1 # one\n\n\n", f"---\na: 1 # one\ngpuval_images:\n{NAMED}"),
        ("gpuval_images: {} # none\nb: 2\n", f"gpuval_images: \n{NAMED[:-1]} # none\nb: 2\n"),
        ("gpuval_images:\nb: 2\n", f"gpuval_images:\n{NAMED}b: 2\n"),
        (
            BLOCK.format(old=OLD, more=""),
            BLOCK.format(old=f'"{NEW}"', more=f'    loading: {{reference: "{LOADING}"}}\n'),
        ),
        (
            f"gpuval_images: {{training: {{reference: '{OLD}'}}}}\n",
            f'gpuval_images: {{loading: {{reference: "{LOADING}"}}, training: {{reference: "{NEW}"}}}}\n',
        ),
        (SITE.format(old=OLD), SITE.format(old=f'"{NEW}"') + f'\n  loading: {{reference: "{LOADING}"}}'),
    ],
)
def test_the_references_are_set_and_comments_stay(before, after):
    references = {"loading": LOADING, "training": NEW}
    assert registry_images.with_references(PATH, before, references) == after
    assert registry_images.with_references(PATH, after, references) == after


@pytest.mark.parametrize(
    "text",
    [
        "- a\n",
        "gpuval_images: '{{ site_images }}'\n",
        "gpuval_images: [a]\n",
        "gpuval_images: {training: x}\n",
        "$ANSIBLE_VAULT;1.1;AES256\n61\n",
        "a: [\n",
        "a: 1\na: 2\n",
    ],
)
def test_what_cannot_be_changed_is_shown_to_be_written_by_hand(text):
    with pytest.raises(ImagesError, match=r"write into it gpuval_images: \{training: ") as caught:
        registry_images.with_references(PATH, text, {"training": NEW})
    shown = str(caught.value).partition("write into it ")[2]
    assert yaml.safe_load(shown) == {"gpuval_images": {"training": {"reference": NEW}}}


@pytest.mark.parametrize("registry", ["localhost:5000", "r.example/a/b-c", "10.0.0.1:5000/gpuval", "r.example/a/"])
def test_registries(registry):
    assert registry_images.check_registry(registry) == registry.rstrip("/")


@pytest.mark.parametrize(
    "registry", ["https://r.example/a", "r.example/a:tag", "R.example/A", "", "r.example//a", "a b"]
)
def test_what_is_no_registry(registry):
    with pytest.raises(ImagesError, match="write HOST/PATH or HOST:PORT/PATH"):
        registry_images.check_registry(registry)


@pytest.mark.parametrize(
    ("entry", "of_site"),
    [
        (None, False),
        ({}, False),
        ({"reference": OLD}, False),
        ({"reference": "gpuval-training:nvidia"}, False),
        ({"reference": "nvcr.io/nvidia/pytorch:25.12-py3"}, True),
        ({"reference": "r.example/gpuval-training-mine:1"}, True),
    ],
)
def test_an_image_of_the_site_is_not_built(entry, of_site):
    assert registry_images.is_of_site("training", entry) is of_site


@pytest.mark.parametrize("way", ["build", "copy", "archive"])
def test_an_image_that_is_made_another_way_is_refused(way):
    with pytest.raises(ImagesError, match=rf"gpuval_images\.training has {way}, .*: remove the entry"):
        registry_images.is_of_site("training", {"reference": "a:1", way: True})
