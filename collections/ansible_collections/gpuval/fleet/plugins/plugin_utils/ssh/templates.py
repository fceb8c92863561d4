"""Compiled templates that forked workers inherit: Ansible compiles a template again each time it is used."""

from __future__ import annotations

from functools import wraps
from types import CodeType
from typing import Any

from ..core.ansible_internal import AnsibleEnvironment, _TemplateCompileContext

#: A run's arguments have some hundred templates.
MAX_KEPT = 2000


def compile_once() -> None:
    """From now on this process, and those that it forks, compile a template once."""
    compiled: dict[tuple[str, bool], CodeType] = {}
    compile_anew = AnsibleEnvironment.compile
    if hasattr(compile_anew, "__wrapped__"):
        return

    @wraps(compile_anew)
    def compile_kept(self: AnsibleEnvironment, source: Any, *words: Any, **options: Any) -> Any:
        # An overlay has delimiters of its own; a tree of nodes is a part of another template.
        if words or options or self.overlayed or not isinstance(source, str):
            return compile_anew(self, source, *words, **options)
        context = _TemplateCompileContext.current(optional=True)
        key = (str(source), bool(context and context.escape_backslashes))
        code = compiled.get(key)
        if code is None:
            code = compile_anew(self, source)
            if len(compiled) < MAX_KEPT:
                compiled[key] = code
        return code

    AnsibleEnvironment.compile = compile_kept
