"""The simulated model's tokenizer: a fixed vocabulary of words, bytes for everything else, so any
text can be encoded and decoded.

Ids 1 to 5 are the special tokens, as in the tiny model that the project's tests train for a real
vLLM; then 256 bytes, then pairs of ASCII characters, then the words. A word outside the table
becomes two or three tokens, as in a real vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

BOS, EOS, USER, ASSISTANT, SYSTEM = 1, 2, 3, 4, 5
SPECIAL: Mapping[str, int] = {
    "<s>": BOS,
    "</s>": EOS,
    "<|user|>": USER,
    "<|assistant|>": ASSISTANT,
    "<|system|>": SYSTEM,
}
BYTES = 6
PAIRS = BYTES + 256
WORDS = PAIRS + 128 * 128

_SPECIALS = re.compile("|".join(re.escape(text) for text in SPECIAL))
#: As in GPT-2: a blank belongs to the word after it; numbers in pieces of three digits.
_PIECE = re.compile(r" ?[A-Za-z]+| ?[0-9]{1,3}| ?[^\sA-Za-z0-9]+|\s+")


class Vocabulary:
    """Text to ids and back. `words`: texts whose pieces get a token each."""

    def __init__(self, texts: Iterable[str]) -> None:
        pieces = dict.fromkeys(piece for text in texts for piece in _PIECE.findall(text))
        self._id_of = {piece: WORDS + index for index, piece in enumerate(pieces)}
        self._text_of = [*pieces]
        self.size = WORDS + len(pieces)

    def encode(self, text: str, specials: bool = True) -> list[int]:
        """The ids of a text; `<|user|>` and the like are parsed as special tokens, as in
        Hugging Face tokenizers.
        """
        ids: list[int] = []
        end = 0
        for found in _SPECIALS.finditer(text) if specials else ():
            self._plain(text[end : found.start()], ids)
            ids.append(SPECIAL[found[0]])
            end = found.end()
        self._plain(text[end:], ids)
        return ids

    def token(self, token: int) -> bytes:
        """The bytes of one token; special tokens by their name."""
        if token < BYTES:
            return next(
                (text.encode() for text, special in SPECIAL.items() if special == token), b"<pad>"
            )
        if token < PAIRS:
            return bytes([token - BYTES])
        if token < WORDS:
            return bytes(divmod(token - PAIRS, 128))
        return self._text_of[token - WORDS].encode() if token < self.size else b""

    def text(self, token: int) -> str:
        """One token as shown in log-probabilities."""
        return self.token(token).decode("utf-8", errors="replace")

    def decode(self, ids: Sequence[int], skip_specials: bool = True) -> str:
        """The text of ids."""
        shown = (self.token(i) for i in ids if not (skip_specials and i < BYTES))
        return b"".join(shown).decode("utf-8", errors="replace")

    def _plain(self, text: str, ids: list[int]) -> None:
        for piece in _PIECE.findall(text):
            known = self._id_of.get(piece)
            if known is None:
                ids += self._spelt(piece)
            else:
                ids.append(known)

    @staticmethod
    def _spelt(piece: str) -> list[int]:
        """An unknown piece: pairs of ASCII characters, single bytes for the rest."""
        data = piece.encode("utf-8", errors="surrogatepass")
        ids: list[int] = []
        at = 0
        while at < len(data):
            pair = data[at : at + 2]
            if len(pair) == 2 and max(pair) < 128:
                ids.append(PAIRS + pair[0] * 128 + pair[1])
                at += 2
            else:
                ids.append(BYTES + data[at])
                at += 1
        return ids
