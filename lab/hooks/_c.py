"""C source as tokens with the conditions they stand under: enough to read lists, enumerations and definitions.

Comments and literals are understood, `#if 0` is left out, other conditions are carried along as text; macros are not
expanded, because the lists that are read here are made of macro calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f\v]+|\\\n)|(?P<newline>\n)|(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*")|"""
    r"""(?P<char>'(?:\\.|[^'\\\n])*')|(?P<word>[A-Za-z_]\w*)|(?P<number>\.?\d[\w.]*)|(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)


class Token(NamedTuple):
    """One token."""

    kind: str
    """word, text, char, number or sign."""
    text: str
    """A string literal without its quotes."""
    line: int
    conditions: tuple[str, ...]
    """The preprocessor conditions it stands under, outermost first; an else is `!(...)`."""


def tokens(source: str) -> Iterator[Token]:
    """Tokens of a file, directives consumed."""
    conditions: list[str] = []
    line, at, fresh = 1, 0, True
    while at < len(source):
        if fresh and source[at] == "#":
            end = at
            while end < len(source) and source[end] != "\n":
                end += 2 if source.startswith("\\\n", end) else 1
            _directive(source[at + 1 : end], conditions)
            line += source.count("\n", at, end)
            at = end
            continue
        match = _TOKEN.match(source, at)
        assert match is not None  # the last alternative takes any character
        at, kind, text = match.end(), match.lastgroup or "", match[0]
        if kind == "newline":
            fresh = True
        elif kind not in ("space", "comment"):
            fresh = False
            if "0" not in conditions:
                yield Token(kind, text[1:-1] if kind == "text" else text, line, tuple(conditions))
        line += text.count("\n")


def _directive(text: str, conditions: list[str]) -> None:
    text = re.sub(r"/\*.*?\*/|//.*", " ", text.replace("\\\n", " "), flags=re.DOTALL)
    word, _, rest = text.strip().partition(" ")
    rest = " ".join(rest.split())
    if word == "if":
        conditions.append(rest)
    elif word == "ifdef":
        conditions.append(f"defined({rest})")
    elif word == "ifndef":
        conditions.append(f"!defined({rest})")
    elif word == "elif" and conditions:
        conditions[-1] = rest
    elif word == "else" and conditions:
        conditions[-1] = "1" if conditions[-1] == "0" else "0" if conditions[-1] == "1" else f"!({conditions[-1]})"
    elif word == "endif" and conditions:
        conditions.pop()


class Definition(NamedTuple):
    """A function with a body."""

    name: str
    line: int
    conditions: tuple[str, ...]
    parameters: int
    static: bool
    body: tuple[Token, ...]


def definitions(found: list[Token]) -> Iterator[Definition]:
    """Function definitions at file level: `name ( ... ) {` with a type before the name."""
    depth, at, statement = 0, 0, 0
    while at < len(found):
        token = found[at]
        if token.text in "{}" and token.kind == "sign":
            depth = max(0, depth + (1 if token.text == "{" else -1))
            if depth == 0:
                statement = at + 1
        elif depth == 0 and token.text == ";":
            statement = at + 1
        elif depth == 0 and token.text == "(" and at > statement and _names(found[at - 1]):
            end = _closing(found, at)
            behind = end + 1
            while behind < len(found) and found[behind].text == "__attribute__":
                behind = _closing(found, behind + 1) + 1
            if behind < len(found) and found[behind].text == "{" and at - 1 > statement:
                name = found[at - 1]
                words = {one.text for one in found[statement : at - 1]}
                if "=" not in words and "typedef" not in words:
                    parameters, body = _count(found[at + 1 : end]), _body(found, behind)
                    yield Definition(name.text, name.line, name.conditions, parameters, "static" in words, body)
            at = end
        at += 1


def _names(token: Token) -> bool:
    return token.kind == "word" and token.text != "__attribute__"


def _closing(found: list[Token], at: int) -> int:
    depth = 0
    while at < len(found):
        depth += (found[at].text == "(" and found[at].kind == "sign") - (
            found[at].text == ")" and found[at].kind == "sign"
        )
        if depth == 0:
            return at
        at += 1
    return len(found) - 1


def _body(found: list[Token], at: int) -> tuple[Token, ...]:
    """The tokens between an opening brace and its closing one."""
    depth = 0
    for end in range(at, len(found)):
        if found[end].kind == "sign" and found[end].text in "{}":
            depth += 1 if found[end].text == "{" else -1
            if depth == 0:
                return tuple(found[at + 1 : end])
    return tuple(found[at + 1 :])


def _count(inside: list[Token]) -> int:
    if not inside or (len(inside) == 1 and inside[0].text == "void"):
        return 0
    depth = count = 0
    for token in inside:
        depth += (token.text in "([") - (token.text in ")]") if token.kind == "sign" else 0
        count += token.text == "," and depth == 0
    return count + 1


def strip_extern_c(found: list[Token]) -> list[Token]:
    """Without `extern "C" {` and its closing brace, which would hide a whole header's definitions."""
    kept, skip, depth = [], 0, 0
    at = 0
    while at < len(found):
        if [one.text for one in found[at : at + 3]] == ["extern", "C", "{"]:
            skip += 1
            at += 3
            continue
        if found[at].kind == "sign" and found[at].text in "{}":
            depth += 1 if found[at].text == "{" else -1
            if depth < 0 and skip:
                depth, skip = 0, skip - 1
                at += 1
                continue
        kept.append(found[at])
        at += 1
    return kept
