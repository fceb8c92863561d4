"""Reports on runs as they lie in their folders, and from inputs whose facts were kept as JSON in between."""

import json

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import judging


def through_json(facts):
    """The facts of a judgement as another process reads them."""
    document = json.loads(json.dumps(facts.document()))
    schemas.validate("judgement", document, what="judgement.json")
    return judging.facts_of(document)


def inputs_now(folder, checks, *, run=None, gangs=None, with_gangs=True, **facts):
    """``facts``: fields of the judgement's facts, such as the verdict before."""
    run = run or folder.read_run()
    options = {"gangs": gangs, "with_gangs": with_gangs}
    facts = judging.present_facts(folder, run, **facts)
    first = judging.read_inputs(folder, run, checks, facts=facts, results=folder.results, **options)
    return judging.read_inputs(folder, run, checks, facts=through_json(first.facts), **options)


def report_on(folder, checks, **options):
    return judging.report_on(inputs_now(folder, checks, **options))
