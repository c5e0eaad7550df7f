"""Checks whether a JSON schema (2020-12) can be applied to an answer, when a probe file is read.
Nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

_REFERENCES = ("$ref", "$dynamicRef")
#: Keywords whose schemas apply to the same value, and not to a part of it: a cycle of these never
#: ends.
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE = ("not", "if", "then", "else")


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Why a schema cannot be used, as the rest of a sentence after "the schema"; None where it
    can.
    """
    try:
        Draft202012Validator.check_schema(dict(schema))
        resource = DRAFT202012.create_resource(dict(schema))
        registry: Registry[Any] = Registry().with_resource("", resource).crawl()
        resolver = registry.resolver(resource.id() or "")
        return _walk(resource, resolver, set())
    except SchemaError as error:
        return f"is not a JSON schema: {error.message}"
    except RecursionError:
        return "is nested too deeply"


def _walk(resource: Resource[Any], resolver: Any, seen: set[int]) -> str | None:
    """The first problem of a schema, of its subschemas and of those that it refers to."""
    contents = resource.contents
    if not isinstance(contents, Mapping) or id(contents) in seen:
        return None
    seen.add(id(contents))
    if _is_cyclic(contents, resolver, ()):
        return "refers to itself for the same value, so that no answer can be judged"
    next_ones = [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]
    for reference in (contents[name] for name in _REFERENCES if name in contents):
        try:
            found = resolver.lookup(reference)
        except Unresolvable:
            return (
                f"refers to {reference!r}, which is not in it; define it under $defs, since "
                "nothing is fetched"
            )
        if not isinstance(found.contents, Mapping | bool):
            return f"refers to {reference!r}, which is not a schema"
        next_ones.append((DRAFT202012.create_resource(found.contents), found.resolver))
    return next(
        (problem for one, its in next_ones if (problem := _walk(one, its, seen)) is not None), None
    )


def _is_cyclic(contents: Any, resolver: Any, above: tuple[int, ...]) -> bool:
    """Whether applying this schema to a value applies it to the same value again."""
    if not isinstance(contents, Mapping):
        return False
    if id(contents) in above:
        return True
    return any(
        _is_cyclic(inner, found, (*above, id(contents)))
        for inner, found in _same_value_schemas(contents, resolver)
    )


def _same_value_schemas(contents: Mapping[str, Any], resolver: Any) -> Iterator[tuple[Any, Any]]:
    """The schemas that apply to the same value. An unresolvable reference is reported elsewhere."""
    for name in _REFERENCES:
        if name in contents:
            try:
                found = resolver.lookup(contents[name])
            except Unresolvable:
                continue
            yield found.contents, found.resolver
    inner = [contents[name] for name in _SAME_VALUE if name in contents]
    inner += [schema for name in _SAME_VALUE_LISTS for schema in contents.get(name) or ()]
    inner += [*(contents.get("dependentSchemas") or {}).values()]
    for schema in inner:
        yield schema, resolver.in_subresource(DRAFT202012.create_resource(schema))
