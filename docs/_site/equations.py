"""Equations as docstrings have them, `h_t = tanh(W x_t + U h_{t-1} + b)`, turned into MathML that browsers draw.

The notation: words and letters, `_` and `^` with one sign or a group in braces or brackets, `/` for fractions (what
stands side by side is multiplied first), `sqrt(...)`, brackets, and signs between them.
"""

import re
from html import escape

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eta": "η", "theta": "θ", "lambda": "λ",
    "mu": "μ", "phi": "φ", "psi": "ψ", "sigma": "σ", "tau": "τ", "omega": "ω", "sum": "∑", "prod": "∏",
}  # fmt: skip
TOKEN = re.compile(r"\s*(\.\.\.|\.\.|<=|>=|!=|[A-Za-z]+'?|\d+(?:\.\d+)?(?:e-?\d+)?|_|\S)")
WORD = re.compile(r"[A-Za-z]{2,}(?:_[A-Za-z]{2,})+")
SIGNS = {"*": "⊙", "-": "−", "<=": "≤", ">=": "≥", "!=": "≠", "...": "…", "..": "…", "~": "∼"}
OPEN = {"(": ")", "[": "]", "{": "}"}


class NotAnEquation(ValueError):
    """The text does not follow the notation."""


def mathml(text: str) -> str:
    """The equation as a MathML element, to stand in a line of text.

    Raises:
        NotAnEquation: The text does not follow the notation.
    """
    parser = _Parser(text)
    body = parser.line()
    if parser.tokens:
        raise NotAnEquation(f"{text!r}: {parser.tokens[0]!r} was not expected")
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML" alttext="{escape(text)}">{body}</math>'


class _Parser:
    def __init__(self, text):
        self.words = {}
        self.in_bars = False
        for i, word in enumerate(dict.fromkeys(WORD.findall(text))):
            stand_in = f"zz{'abcdefghij'[i]}"
            self.words[stand_in] = word
            text = text.replace(word, stand_in)
        self.tokens = TOKEN.findall(text)

    def next(self):
        if not self.tokens:
            raise NotAnEquation("it ends too early")
        return self.tokens.pop(0)

    def peek(self):
        return self.tokens[0] if self.tokens else ""

    def line(self, end=""):
        """Terms with signs between them, up to a closing bracket."""
        found = []
        while self.tokens and self.peek() != end:
            if self.peek() in (")", "]", "}"):
                raise NotAnEquation(f"{self.peek()!r} closes nothing")
            found.append(self.term() if self._starts() else _sign(self.next()))
        return _row(found)

    def _starts(self):
        token = self.peek()
        bar = token == "|" and not self.in_bars
        return bool(token) and (bar or token in OPEN or token[0].isalnum() or token in ("...", ".."))

    def term(self):
        """Products with `/` or `*` between them; a fraction drops the brackets that it makes needless."""
        left = self.product()
        while self.peek() in ("/", "*"):
            if self.next() == "*":
                left = [*left, _sign("*"), *self.product()]
            else:
                left = [f"<mfrac>{_row(_bare(left))}{_row(_bare(self.product()))}</mfrac>"]
        return _row(left)

    def product(self):
        found = []
        while self.tokens and self._starts():
            found.append(self.factor())
        if not found:
            raise NotAnEquation("something is missing beside a sign")
        return found

    def factor(self):
        base, below, above = self.base(), "", ""
        while self.peek() in ("_", "^"):
            if self.next() == "_":
                below = self.script()
            else:
                above = self.script()
        if below and above:
            return f"<msubsup>{base}{below}{above}</msubsup>"
        if below or above:
            return f"<msub>{base}{below}</msub>" if below else f"<msup>{base}{above}</msup>"
        return base

    def script(self):
        if self.peek() in ("{", "("):
            closing = OPEN[self.next()]
            body = self.line(closing)
            self.close(closing)
            return body
        token = self.next()
        if self.peek() == "," and token.isalpha():  # head_h,t
            self.next()
            return _row([_name(token), _sign(","), self.base()])
        return _name(token)

    def base(self):
        token = self.next()
        if token in OPEN:
            closing = OPEN[token]
            body = self.line(closing)
            self.close(closing)
            return f"<mrow><mo>{token}</mo>{body}<mo>{closing}</mo></mrow>"
        if token == "|":
            self.in_bars = True
            body = self.line("|")
            self.close("|")
            self.in_bars = False
            return f"<mrow><mo>|</mo>{body}<mo>|</mo></mrow>"
        if token == "sqrt":
            if self.next() != "(":
                raise NotAnEquation("sqrt wants brackets")
            body = self.line(")")
            self.close(")")
            return f"<msqrt>{body}</msqrt>"
        if token in ("...", ".."):
            return _sign(token)
        if token in self.words:
            return f'<mi mathvariant="normal">{escape(self.words[token].replace("_", " "))}</mi>'
        if token[0].isalpha() and len(token) == 1 and self.peek().isdigit():  # W1
            return f"<msub>{_name(token)}{_name(self.next())}</msub>"
        return _name(token)

    def close(self, closing):
        if self.next() != closing:
            raise NotAnEquation(f"{closing!r} is missing")


def _name(token):
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token in GREEK:
        return f"<mi>{GREEK[token]}</mi>"
    if not token[0].isalpha():
        raise NotAnEquation(f"{token!r} is no name")
    return f"<mi>{escape(token)}</mi>" if len(token) == 1 else f'<mi mathvariant="normal">{escape(token)}</mi>'


def _sign(token):
    return f"<mo>{escape(SIGNS.get(token, token))}</mo>"


def _row(parts):
    return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"


def _bare(parts):
    """The parts without the round brackets around them, where there are some."""
    if len(parts) == 1 and parts[0].startswith("<mrow><mo>(</mo>"):
        return [parts[0].removeprefix("<mrow><mo>(</mo>").removesuffix("<mo>)</mo></mrow>").join(["<mrow>", "</mrow>"])]
    return parts
