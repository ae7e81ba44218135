"""Chat templates: Jinja in a sandbox, with the filters, functions and tags that Hugging Face's templates expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

ContentFormat = Literal["string", "openai"]
"""Whether a template reads a message's content as text or as a list of parts."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a template takes an assistant's message with calls; the reference gives every template the defaults."""

    arguments: Literal["object", "text"] = "object"
    """A call's arguments as an object, for templates that write JSON or go through the items, or as JSON text, for
    templates that put it between other text."""
    no_content: Literal["empty", "none", "absent"] = "empty"
    """What stands for the content of a message that has calls alone."""
    text_beside: Literal["together", "apart", "dropped"] = "together"
    """A text beside calls: in the same message, in one of its own before it, or nowhere if the template refuses both."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it just renders its body."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=64)
def compile_template(source: str) -> Template:
    """The template, ready to render; raises `jinja2.TemplateSyntaxError`."""
    return _environment().from_string(source)


@lru_cache(maxsize=64)
def knows_developer_role(source: str) -> bool:
    """Whether the template handles `developer` messages itself."""
    return '"developer"' in source or "'developer'" in source


@lru_cache(maxsize=64)
def takes_late_system(source: str) -> bool:
    """Whether the template accepts system messages after the first message.

    Tested with plain Jinja: a template that needs more than that counts as one that does not.
    """
    bare = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        bare.from_string(source).render(messages=turns, add_generation_prompt=False)
    except TemplateError:
        return False
    return True


@lru_cache(maxsize=64)
def content_format_of(source: str) -> ContentFormat:
    """`openai` if the template loops over the parts of a message's content, `string` if it does not."""
    try:
        root = _environment().parse(source)
        return "openai" if _loops_over_content(root) else "string"
    except TemplateError:
        return "string"


def _unwrapped(node: nodes.Node | None) -> nodes.Node | None:
    """The expression under filters, tests and slices."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            return node


def _path(node: nodes.Node | None) -> str | None:
    """The expression as a dotted path (`messages`, `ns.messages`, `message.content`), however it is written."""
    match _unwrapped(node):
        case nodes.Name(name=name):
            return str(name)
        case nodes.NSRef(name=name, attr=attr):
            return f"{name}.{attr}"
        case nodes.Getattr(node=base, attr=attr) if (prefix := _path(base)) is not None:
            return f"{prefix}.{attr}"
        case nodes.Getitem(node=base, arg=nodes.Const(value=str(key))) if (prefix := _path(base)) is not None:
            return f"{prefix}.{key}"
    return None


def _aliases(root: nodes.Template, name: str) -> set[str]:
    """The variable's name and all names for copies of it: assigned, sliced, filtered, or put into a namespace."""
    found = {name}
    while True:
        size = len(found)
        for target, value in _assignments(root):
            if target is not None and _path(value) in found:
                found.add(target)
        if len(found) == size:
            return found


def _assignments(root: nodes.Template) -> Iterator[tuple[str | None, nodes.Node]]:
    for assign in root.find_all(nodes.Assign):
        yield _path(assign.target), assign.node
        match assign:
            case nodes.Assign(target=nodes.Name(name=name), node=nodes.Call(node=nodes.Name(name="namespace")) as call):
                for keyword in call.kwargs:
                    yield f"{name}.{keyword.key}", keyword.value


def _loops_over_content(root: nodes.Template) -> bool:
    messages = _aliases(root, "messages")
    items = {
        loop.target.name
        for loop in root.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _path(loop.iter) in messages
    }
    contents = {f"{item}.content" for item in items}
    in_macros: set[int] = set()
    for macro in root.find_all(nodes.Macro):
        parameters = _parameters_given(root, macro, contents)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in parameters:
                return True
    return any(
        _path(loop.iter) in contents
        or (isinstance(loop.iter, nodes.Name) and loop.iter.name == "content" and id(loop) not in in_macros)
        for loop in root.find_all(nodes.For)
    )


def _parameters_given(root: nodes.Template, macro: nodes.Macro, values: set[str]) -> set[str]:
    """The macro's parameters that get one of these values in some call."""
    names = [parameter.name for parameter in macro.args]
    found: set[str] = set()
    for call in root.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            found |= {name for name, value in zip(names, call.args, strict=False) if _path(value) in values}
            found |= {keyword.key for keyword in call.kwargs if _path(keyword.value) in values}
    return found & set(names)
