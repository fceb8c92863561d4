"""Makes the whole report on a run, from the inputs of its judgement alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..core import commands
from ..gang.judging import JudgementFacts, JudgementInputs, report_on
from ..judge import actions
from ..judge.peer_groups import PeerHistory
from ..records import report_file
from .summary import summary_lines


@dataclass(frozen=True)
class JudgedReport:
    """A judged report, the facts behind it, and ``standings``: the peer groups for the run's next judgement."""

    report: dict[str, Any]
    standings: list[dict[str, Any]]
    facts: JudgementFacts

    def lines(self) -> Iterator[str]:
        """The pieces of report.json, checked against its schema. Raises schemas.Invalid."""
        return report_file.lines(self.report, what="report.json")


def judge(inputs: JudgementInputs, written: Callable[[str], str] | None = None) -> JudgedReport:
    """Judge a run. Equal inputs give equal bytes of report.json, on any machine and at any time. ``written``: rewrites
    a remedy with commands of this controller, which the facts then keep; None uses the remedies that they have."""
    facts, history = inputs.facts, PeerHistory.of(inputs.facts.standings)
    report = report_on(inputs, history)
    if facts.is_attended:
        report["run"].setdefault("resume", "the same command resumes the run")
    actions.assign(report, facts.earlier)
    remedies = dict(facts.remedies)

    def remedy_of(text: str) -> str:
        if written is not None and (there := written(text)) != text:
            remedies[text] = there
        return remedies.get(text, text)

    commands.in_remedies(report, remedy_of)
    report["summary"] = summary_lines(report)
    return JudgedReport(report, history.documents(), replace(facts, remedies=remedies))
