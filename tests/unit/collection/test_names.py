"""Class names are unique in the product; pointing and generic names of variables stay below the limits of names.yml."""

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest
import yaml

PRODUCT = Path(__file__).resolve().parents[3] / "collections/ansible_collections/gpuval/fleet"
DATA = yaml.safe_load(Path(__file__).with_name("names.yml").read_text())
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def assigned(node):
    """Yield (name, line) of each variable and parameter below a node; not `self`, `cls` and those of comprehensions."""
    if isinstance(node, ast.comprehension):
        children = [node.iter, *node.ifs]
    else:
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg, node.lineno
    for child in children:
        yield from assigned(child)


@functools.cache
def trees():
    return {path: ast.parse(path.read_text()) for path in sorted(PRODUCT.rglob("*.py"))}


@functools.cache
def product_names():
    return [(name.strip("_"), path, line) for path, tree in trees().items() for name, line in assigned(tree)]


@pytest.mark.parametrize("group", ["pointing", "generic"])
def test_few_variables_have_a_name_of_the_group(group):
    matches = [(name, path, line) for name, path, line in product_names() if name in DATA[group]]
    share, limit = 100 * len(matches) / len(product_names()), DATA[f"{group}_limit"]
    by_folder = Counter(str(path.parent.relative_to(PRODUCT)) for _, path, _ in matches).most_common()
    assert share <= limit, f"{share:.2f} % of the names are {group}, at most {limit} %: {by_folder}"


def test_class_names_are_unique():
    count = Counter(node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    repeated = {name for name, number in count.items() if number > 1}
    assert repeated == DATA["repeated_classes"].keys()
    assert len(repeated) <= 10


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(self, one, *rest, other=1, **kw): place: int = one", ["one", "rest", "other", "kw", "place"]),
        ("for own, (left, _) in x: pass", ["own", "left", "_"]),
        ("known = [one for one in found if (both := one)]", ["known", "both"]),
        ("sorted(x, key=lambda item: item.what)", ["item"]),
        ("class Job:\n  what: str = ''\n  self.its = 1", ["what"]),
    ],
)
def test_assigned_names_are_counted(source, names):
    assert sorted(name for name, _ in assigned(ast.parse(source))) == sorted(names)
