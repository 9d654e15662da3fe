"""Ids and names as the wires allow them. Pure; touches nothing.

An id that a wire does not take is replaced by a hash of it. What is sent then follows from the id alone, never
from what else is in the request: the same on both sides of a pair, the same in every later request (law C6).
An id that happens to look like such a replacement is replaced itself, so that two ids never become one.
"""

import hashlib
import re

import attrs

__all__ = ["ANTHROPIC_IDS", "CHAT_IDS", "MISTRAL_IDS", "IdRule", "tool_name"]

_BAD_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MOST_NAME = 64
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@attrs.frozen
class IdRule:
    """Which call ids a wire takes, and what the others become."""

    allowed: str
    """A pattern that a whole id must match."""
    prefix: str
    """Begins every replacement."""
    digits: int
    """Of the hash that follows it, in base 62."""

    def map(self, ident: str) -> str:
        """The id to send for an id of ours."""
        replacement = re.compile(f"{self.prefix}[{_DIGITS}]{{{self.digits}}}")
        if re.fullmatch(self.allowed, ident) and not replacement.fullmatch(ident):
            return ident
        number = int.from_bytes(hashlib.sha256(ident.encode("utf-8", "surrogatepass")).digest())
        text = ""
        for _ in range(self.digits):
            number, digit = divmod(number, 62)
            text += _DIGITS[digit]
        return self.prefix + text


ANTHROPIC_IDS = IdRule(r"[A-Za-z0-9_-]+", "tk_", 24)
"""Rule A06. The vendor names no longest length; recorded requests hold ids of other vendors as they came."""
CHAT_IDS = IdRule(r"[!-~]{1,40}", "tk_", 24)
"""Rule C07: at most 40 characters, here of plain ASCII."""
MISTRAL_IDS = IdRule(r"[A-Za-z0-9]{9}", "", 9)
"""Rule C11: nine letters and digits."""


def tool_name(name: str) -> str:
    """A tool's name that every wire takes in a history (rule C08): models call tools that there never were."""
    return _BAD_IN_NAME.sub("_", name)[:_MOST_NAME] or "unknown"
