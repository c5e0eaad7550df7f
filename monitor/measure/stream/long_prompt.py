"""Long prompts: a fixed text, repeated until it fills the wanted share of a server's context."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import httpx

from monitor.measure.server import api
from monitor.model import Probe

#: Plain words, so that every tokenizer makes about the same number of tokens; numbered, so that no
#: two paragraphs are the same.
PARAGRAPH = (
    "Paragraph {number}. The watch on the hill writes down what it sees at every hour: the "
    "wind, the light, the carts on the road "
    "and the birds over the field. Nothing of it matters on most days, and on most days nobody "
    "asks. It is written down all the "
    "same, in the same words and in the same order, so that on the day when something is "
    "different the difference can be seen."
)


#: Counts the tokens of a probe's prompt.
PromptLength = Callable[[Probe], Awaitable[int]]


async def lengthened(
    http: httpx.AsyncClient, probe: Probe, model: str | None, max_model_len: int
) -> Probe:
    """The probe with its first message lengthened; the question stays at the end. Raises the errors
    of monitor.measure.server.api.

    The length is counted by the server's own tokenizer. A server with another context gets another
    prompt, which is another revision.
    """
    return await fitted(probe, max_model_len, lambda longer: api.prompt_length(http, longer, model))


async def fitted(probe: Probe, max_model_len: int, length: PromptLength) -> Probe:
    """As `lengthened`, with any way to count the tokens of a prompt."""
    if probe.context_share is None or not probe.messages:
        return probe
    wanted = min(
        int(probe.context_share * max_model_len),
        probe.context_at_most,
        max_model_len - probe.max_tokens,
    )
    bare = await length(probe)
    ten = await length(_with_paragraphs(probe, 10))
    each = max(1.0, (ten - bare) / 10)
    count = max(0, int((wanted - bare) / each))
    while count > 0 and await length(_with_paragraphs(probe, count)) > wanted:
        count -= max(1, count // 50)
    return _with_paragraphs(probe, count)


def _with_paragraphs(probe: Probe, count: int) -> Probe:
    first, *rest = probe.messages or ()
    text = "\n\n".join(PARAGRAPH.format(number=number) for number in range(1, count + 1))
    content = f"{text}\n\n{first['content']}" if count else first["content"]
    revision = hashlib.sha256(f"{probe.revision}/{count}".encode()).hexdigest()[:16]
    return replace(
        probe,
        messages=({**first, "content": content}, *rest),
        context_share=None,
        revision=revision,
    )
