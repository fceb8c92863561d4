"""A JSON Schema as one Python function that is fast and may only err to one side.

jsonschema takes 20 us for each value; a fleet's records and its report have millions. `compiled` makes a test that says
True only of documents that the validator accepts. False says nothing: ask the validator, which tells what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Test = Callable[[Any], bool]

_SAY_NOTHING = frozenset({"$schema", "$id", "$defs", "title", "description", "default", "examples"})
_TYPES = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "object": (dict,), "array": (list,),
}  # fmt: skip
_OF_TEXT = frozenset({"pattern", "minLength", "maxLength"})
_OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum"})
_OF_LISTS = frozenset({"items", "minItems", "maxItems"})
_OF_OBJECTS = frozenset(
    {"properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"}
)
_KNOWN = _SAY_NOTHING | _OF_TEXT | _OF_NUMBERS | _OF_LISTS | _OF_OBJECTS | {"type", "enum", "const", "$ref", "anyOf"}


def compiled(schema: dict[str, Any], pattern: Callable[[str], re.Pattern[str]]) -> Test:
    """The test of a whole schema; ``pattern`` compiles its patterns."""
    return _Compiler(schema, pattern).test("#", schema)


def _never(_value: Any) -> bool:
    return False


class _Compiler:
    def __init__(self, root: dict[str, Any], pattern: Callable[[str], re.Pattern[str]]) -> None:
        self._root = root
        self._pattern = pattern
        self._made: dict[str, Test] = {}

    def test(self, place: str, schema: Any) -> Test:
        """The test of one schema; what it does not understand is never passed."""
        if schema is True or schema == {}:
            return lambda _value: True
        if not isinstance(schema, dict) or schema.keys() - _KNOWN:
            return _never
        if "$ref" in schema:
            return self._reference(schema["$ref"]) if not schema.keys() - _SAY_NOTHING - {"$ref"} else _never
        if "anyOf" in schema:
            if schema.keys() - _SAY_NOTHING - {"anyOf"}:
                return _never
            tests = [self.test(place, one) for one in schema["anyOf"]]
            return lambda value: any(test(value) for test in tests)
        if "const" in schema or "enum" in schema:
            texts = frozenset(one for one in schema.get("enum", [schema.get("const")]) if type(one) is str)
            alone = not schema.keys() - _SAY_NOTHING - {"const", "enum"} and len(schema.keys() & {"const", "enum"}) == 1
            return (lambda value: type(value) is str and value in texts) if alone else _never
        return self._typed(place, schema)

    def _reference(self, place: str) -> Test:
        if place not in self._made:
            target: Any = self._root
            for key in place.removeprefix("#").strip("/").split("/"):
                target = target.get(key, False) if key and isinstance(target, dict) else target

            def later(value: Any) -> bool:  # a schema may refer to itself
                return self._made[place](value)

            self._made[place] = later
            self._made[place] = self.test(place, target)
            return later
        return self._made[place]

    def _typed(self, place: str, schema: dict[str, Any]) -> Test:
        names = schema.get("type")
        if names is None:
            return _never
        types = frozenset(
            kind for name in (names if isinstance(names, list) else [names]) for kind in _TYPES.get(name, ())
        )
        more = schema.keys() - _SAY_NOTHING - {"type"}
        if not more:
            return lambda value: type(value) in types
        makers = (
            (_OF_TEXT, str, self._text), (_OF_NUMBERS, int, self._number), (_OF_LISTS, list, self._list),
            (_OF_OBJECTS, dict, self._object),
        )  # fmt: skip
        for keys, kind, maker in makers:
            if kind in types and more <= keys:
                inner = maker(place, schema)
                kinds = {int, float} if kind is int else {kind}
                return lambda value: type(value) in types and (type(value) not in kinds or inner(value))
        return _never

    def _text(self, _place: str, schema: dict[str, Any]) -> Test:
        least, most = schema.get("minLength", 0), schema.get("maxLength", float("inf"))
        found = self._pattern(schema["pattern"]).search if "pattern" in schema else lambda _text: True
        return lambda text: least <= len(text) <= most and found(text) is not None

    def _number(self, _place: str, schema: dict[str, Any]) -> Test:
        least, most = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
        above = schema.get("exclusiveMinimum")
        return lambda number: least <= number <= most and (above is None or number > above)

    def _list(self, place: str, schema: dict[str, Any]) -> Test:
        least, most = schema.get("minItems", 0), schema.get("maxItems", float("inf"))
        items = schema.get("items", True)
        if isinstance(items, dict) and not items.keys() - {"type"} and items:
            names = items["type"] if isinstance(items["type"], list) else [items["type"]]
            kinds = frozenset(kind for name in names for kind in _TYPES.get(name, ()))
            return lambda value: least <= len(value) <= most and kinds.issuperset(map(type, value))
        test = self.test(place, items)
        return lambda value: least <= len(value) <= most and all(map(test, value))

    def _object(self, place: str, schema: dict[str, Any]) -> Test:
        required = frozenset(schema.get("required", ()))
        known = {key: self.test(place, of) for key, of in schema.get("properties", {}).items()}
        additional = schema.get("additionalProperties", True)
        other = _never if additional is False else self.test(place, additional)
        names = self.test(place, {"type": "string", **schema["propertyNames"]}) if "propertyNames" in schema else None
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", float("inf"))

        def test(value: dict[Any, Any]) -> bool:
            if not (required <= value.keys() and least <= len(value) <= most):
                return False
            if names is not None and not all(map(names, value)):
                return False
            return all(known.get(key, other)(item) for key, item in value.items())

        return test
