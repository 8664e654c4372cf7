"""Text made safe for the medium it is about to enter; nothing is written that has not been here."""

from __future__ import annotations

import html as _html
import re
from unicodedata import normalize

from faudit.measures.evidence import printable

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!~$@:/=^])")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    # After the end of a row these would be arguments of it.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "λ": r"$\lambda$",
    "Γ": r"$\Gamma$",
    "ε": r"$\varepsilon$",
    "‖": r"$\|$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "—": r"\textemdash{}",
    "–": r"\textendash{}",
    "…": r"\dots{}",
}
_STARTS_FORMULA = ("=", "+", "-", "@", "|", "%")


def plain(text: object) -> str:
    """One line without control characters or marks that turn the reading direction.

    >>> plain("layer\\n\\x1b[31mred\\u202e")
    'layer ?[31mred?'
    """
    return printable(" ".join(str(text).split()))


def html(text: object) -> str:
    """Text for the content or a quoted attribute of HTML or SVG.

    >>> html('<b a="1">')
    '&lt;b a=&quot;1&quot;&gt;'
    """
    return _html.escape(plain(text))


def markdown(text: object) -> str:
    """Text for a cell of a Markdown table; the bar becomes an entity, which no parser splits at.

    >>> markdown("a|b <i> *c*")
    'a&#124;b &lt;i&gt; \\\\*c\\\\*'
    """
    safe = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = _MARKDOWN.sub(r"\\\1", safe) if _needs_escape(safe) else safe
    return escaped.replace("|", "&#124;")


def _needs_escape(text: str) -> bool:
    # Plain numbers and words stay as they are: "0.345" is easier to read than "0\.345".
    return re.fullmatch(r"[\w .,±×+()%/:=‖-]*", text) is None or "_" in text or "://" in text


def latex(text: object) -> str:
    """Text for LaTeX; a letter that the default fonts lack is named by its code point.

    >>> latex("50 % of x_1")
    '50 \\\\% of x\\\\_1'
    """
    written = "".join(map(_latex_character, normalize("NFC", plain(text))))
    return re.sub("-(?=-)", "-{}", written)  # two hyphens would become a dash


def _latex_character(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    if character.isascii():
        return character
    base = normalize("NFKD", character).encode("ascii", "ignore").decode()
    return "".join(_LATEX.get(c, c) for c in base) or f"{{[}}U+{ord(character):04X}{{]}}"


def csv(text: object) -> str:
    """Text for a spreadsheet, which would run a cell that starts like a formula.

    >>> csv("=1+1"), csv("DFA")
    ("'=1+1", 'DFA')
    """
    safe = plain(text)
    return f"'{safe}" if normalize("NFKC", safe).startswith(_STARTS_FORMULA) else safe


def script(json_text: str) -> str:
    """JSON for the inside of a ``<script>`` element, which nothing in it can close.

    >>> script('"</script>"')
    '"\\\\u003c/script\\\\u003e"'
    """
    for character in "<>&\u2028\u2029":
        json_text = json_text.replace(character, f"\\u{ord(character):04x}")
    return json_text
