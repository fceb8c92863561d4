"""Prompts drawn from a built-in text: the same on every node, different for every request."""

from __future__ import annotations

TOKENS_PER_WORD = 1.4  # English prose with the tokenizers of present models, punctuation included

_TEXT = """
The harbour lies quiet before the first ferry leaves. A crane turns slowly above the quay, and the night watch
counts containers by the light of a lamp. Each box has a number, each number a line in a book, and each line the
name of someone who is waiting. When the tide comes in the pilot boards the largest ship, asks for the draught and
the wind, and takes her out between the buoys. None on the bridge speaks more than is needed. Far out the water
changes its colour; the engine finds its rhythm, and the coast becomes a thin grey stroke. The captain writes the
hour and the course. In the galley the cook peels potatoes and listens to the weather report: a low pressure area
moves north, gusts are expected towards evening, visibility is good. By noon the sun stands high, paint is scraped,
ropes are spliced, and a young sailor learns to tell the flags apart. He asks why the sea is never the same twice.
The boatswain laughs, points at the log book and says that it is always the same sea, but that someone has to look
at it every hour and write down what he saw.
"""
_WORDS = _TEXT.split()


def prompt(index: int, tokens: int) -> str:
    """Return the prompt of request `index`, of roughly `tokens` tokens (how many exactly is the tokenizer's to say).

    It begins with the index, so that a server's prefix cache cannot answer for the work.
    """
    count = max(1, round(tokens / TOKENS_PER_WORD) - 3)
    start = index * 37 % len(_WORDS)
    words = [_WORDS[(start + offset) % len(_WORDS)] for offset in range(count)]
    return f"Note {index}. Continue: {' '.join(words)}"
