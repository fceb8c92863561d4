"""Make the collection and what runs on a node importable from the checkout."""

import sys
from pathlib import Path

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

ROOT = Path(__file__).resolve().parents[1]
COLLECTION = ROOT / "collections" / "ansible_collections" / "gpuval" / "fleet"

sys.path.insert(0, str(COLLECTION / "node"))
_AnsibleCollectionFinder(paths=[str(ROOT / "collections")])._install()
