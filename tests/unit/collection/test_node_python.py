"""Python on nodes may be 3.9: what ruff's target version does not see."""

import ast
from pathlib import Path

import pytest

COLLECTION = Path(__file__).resolve().parents[3] / "collections/ansible_collections/gpuval/fleet"
FILES = sorted([*(COLLECTION / "node").rglob("*.py"), *(COLLECTION / "plugins/module_utils").rglob("*.py")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(COLLECTION)))
def test_parents_of_a_path_are_not_sliced(path):
    """Slices and negative indices of ``Path.parents`` came with Python 3.10."""
    subscripts = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Subscript)]
    of_parents = [node for node in subscripts if isinstance(node.value, ast.Attribute) and node.value.attr == "parents"]
    assert all(isinstance(node.slice, ast.Constant) for node in of_parents), [node.lineno for node in of_parents]
