"""One token's text and bytes, as log-probabilities show them."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix

from workers.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 4
"""How many sampled ids before a token may hold the beginning of its character."""


def describe_token(
    tokenizer: Tokenizer, token_id: int, context: Sequence[int] = ()
) -> tuple[str, tuple[int, ...] | None]:
    """A token's text and that text's UTF-8 bytes; ("", None) for an id outside the vocabulary.

    A character that several tokens share belongs to the token that completes it, given the sampled ids before it
    (`context`, of which the last `CONTEXT_TOKENS` count); the tokens before show as "".
    """
    if tokenizer.token_of(token_id) is None:
        return "", None
    text = tokenizer.token_text(token_id)
    if text.endswith("\ufffd"):
        text = _completed(tokenizer, token_id, context)
    return text, tuple(text.encode(errors="replace"))


def _completed(tokenizer: Tokenizer, token_id: int, context: Sequence[int]) -> str:
    for reach in range(1, min(CONTEXT_TOKENS, len(context)) + 1):
        near = list(context[-reach:])
        text = tokenizer.decode([*near, token_id])
        if text.endswith("\ufffd"):
            continue
        while near and tokenizer.decode([near[-1]]).endswith("\ufffd"):
            near.pop()
        return text[len(commonprefix((tokenizer.decode(near), text))) :]
    return ""
