"""What a node answers to a task of the controller: untrusted, and used only as far as a schema knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core import schemas
from ..core.escape import one_line
from .evidence import EvidenceRefused


def accept(schema: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an answer that the schema has. What else stands there, such as facts, is dropped.

    Raises EvidenceRefused, whose message is about this node alone.
    """
    fields = {key: answer[key] for key in schemas.schema(schema)["properties"] if key in answer}
    try:
        schemas.validate(schema, fields, what="it")
    except (schemas.Invalid, RecursionError) as error:
        problem = one_line(str(error), 300)
        raise EvidenceRefused(f"the node's {schema.replace('_', ' ')} is invalid: {problem}") from error
    return fields
