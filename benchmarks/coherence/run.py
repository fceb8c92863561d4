"""What the rules of coherence find: of healthy records how far their ratios are from the limits, and of lies the share.

    python benchmarks/coherence/run.py [--stages | --sources]

Healthy are the real records of tests/data. A lie multiplies or divides one figure by 1.5 or 3. Of each rule: the lies
in its figures that move its ratio towards a limit; with ``--stages`` of each stage: lies in any of its figures that any
rule or physical range finds; with ``--sources`` all figures of one source together, as a careful liar scales them.
Criteria and peers, which find more, are not asked.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

_AnsibleCollectionFinder(paths=[str(ROOT / "collections")])._install()

from coherence_lies import FACTORS, consistent_lies, healthy, measure, rows, single_lies


def print_sources() -> None:
    print("| factor | stage | scaled | found | by |\n|---|---|---|---|---|")
    for factor in FACTORS:
        by_source: dict[str, list[set[str]]] = defaultdict(list)
        for node in healthy():
            for source, rules in consistent_lies(node, factor):
                by_source[source].append(rules)
        for source, each in sorted(by_source.items()):
            rules = sorted(set().union(*each))
            print(f"| {factor:g} | {source} | {sum(map(bool, each))} of {len(each)} | {', '.join(rules[:4])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--stages", action="store_true", help="lies in any figure of a stage")
    what.add_argument("--sources", action="store_true", help="all figures of one source together")
    options = parser.parse_args()
    if options.sources:
        print_sources()
    elif options.stages:
        for factor in FACTORS:
            for stage, (found, lies) in single_lies(factor).items():
                print(f"| {factor:g} | {stage} | {found} of {lies} | {100 * found / lies:.0f} % |")
    else:
        print("| rule | what agrees | healthy | limits | x1.5 | x3 |\n|---|---|---|---|---|---|")
        for name, *columns in rows(measure()):
            print(" | ".join((f"| `{name}`", *columns)) + " |")


if __name__ == "__main__":
    main()
