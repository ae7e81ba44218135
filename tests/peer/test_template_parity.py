"""What a model's own chat template writes for a turn is read back as that turn, as the reference reads it or better.

The template renders a conversation up to the assistant's turn and with it; what it adds is what the model would have
written. It goes, as the real tokenizer's token ids, through both derenderers, in one piece and one token a chunk.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.errors import TokenyardError
from tasks.protocol.base import JsonObject
from tasks.protocol.derender_context import DerenderContext
from tasks.protocol.tokens import TokenChunk
from tests.peer.reference import (
    Frontend,
    derender_streamed,
    derender_whole,
    message_meaning,
    spaced,
)
from tests.peer.test_derendering_parity import summed
from tests.peer.test_render_parity import MODELS, Model, model_folder, profile_of, server_of
from workers.derender import fold
from workers.models.catalog import ModelProfile
from workers.render.prompts import prepare
from workers.surfaces.openai_chat import OPENAI_CHAT

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "quoted": {"type": "string"},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in (("get_weather", PROPERTIES), ("ping", {}))
]
OSLO = ("get_weather", {"city": "Oslo"})
ALL = ("get_weather", {"city": "Zürich 東京 🙂", "days": 3, "tags": ["a", "b"], "quoted": 'say "hi"\n\tthere \\'})
PING: tuple[str, JsonObject] = ("ping", {})


@dataclass(frozen=True)
class Turn:
    """An assistant's turn."""

    name: str
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, JsonObject], ...] = ()

    @property
    def message(self) -> JsonObject:
        calls = [
            {
                "id": f"functions.{name}:{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for index, (name, arguments) in enumerate(self.calls)
        ]
        message: JsonObject = {"role": "assistant", "content": self.text}
        return (
            message
            | ({"reasoning": self.reasoning} if self.reasoning else {})
            | ({"tool_calls": calls} if calls else {})
        )


TURNS = [
    Turn("an answer", "It is 3 < 4 and sunny, naïve 🙂."),
    Turn("reasoning", "It is sunny.", "The user wants it.\nSo be it."),
    Turn("a call", calls=(ALL,)),
    Turn("calls", calls=(OSLO, PING, ALL)),
    Turn("text and a call", "I look.", calls=(OSLO,)),
    Turn("reasoning and a call", "", "Hm.", calls=(OSLO,)),
    Turn("all of it", "I look.", "Hm.\n\nWell.", calls=(ALL, OSLO)),
]

ENDS = (
    *("<|im_end|>", "<｜end▁of▁sentence｜>", "<end_of_turn>", "<|eot_id|>", "[e~[", "<|start|>assistant", "</s>"),
    *("<|eom_id|>", "<|endoftext|>"),
)
"""What templates write after a turn."""

KNOWN: dict[tuple[str, str], str] = {
    ("minimax-m3", "streamed"): "streamed, the reference takes reasoning and its markers for text",
}
"""(model, "whole" or "streamed") → why the reference reads every turn otherwise than it was written; we do not."""

STREAMED = {"an answer", "all of it"}
"""Turns that the reference is asked for one token a chunk, which takes it seconds each; we are for every one."""


def request_of(turn: Turn | None = None) -> JsonObject:
    """A request for a turn, or for the conversation that has it."""
    messages: list[JsonObject] = [{"role": "user", "content": "Weather?"}]
    if turn is None:
        return {"model": "m", "messages": messages, "tools": TOOLS}
    return {"model": "m", "messages": [*messages, turn.message], "tools": TOOLS, "add_generation_prompt": False}


def written(profile: ModelProfile, turn: Turn) -> tuple[list[int], list[int]] | None:
    """The prompt's and the turn's token ids; None where the template does not write the turn after this prompt."""
    (prompt,) = prepare(profile, "openai_chat", request_of()).prompts
    try:
        (whole,) = prepare(profile, "openai_chat", request_of(turn)).prompts
    except TokenyardError:
        return None
    if prompt.text is None or whole.text is None or not whole.text.startswith(prompt.text):
        return None
    text = whole.text[len(prompt.text) :].rstrip()
    for end in ENDS:
        text = text.removesuffix(end).rstrip() if text.endswith(end) else text
    if any(end in text for end in ENDS if end != "<|start|>assistant"):
        return None  # the template writes it as two turns; gpt-oss writes one as several messages
    said = any(city in text for city in ("Oslo", "Zürich"))
    if (turn.calls and not said) or (turn.reasoning and turn.reasoning not in text):
        return None
    return list(prompt.token_ids), profile.tokenizer.encode(text)


def context_of(profile: ModelProfile, prompt: list[int], *, stream: bool) -> DerenderContext:
    request = OPENAI_CHAT.read({**request_of(), "stream": stream})
    return fold.describe(profile, "openai_chat", request, response_id="id", created=1, prompt_token_ids=prompt)


def read_whole(profile: ModelProfile, prompt: list[int], ids: list[int]) -> tuple[JsonObject, str]:
    chunk = TokenChunk(0, tuple(ids), None, "stop")
    answer = fold.respond(profile, context_of(profile, prompt, stream=False), prompt, [chunk])
    choice = answer["choices"][0]
    return message_meaning(choice["message"]), choice["finish_reason"]


def read_streamed(profile: ModelProfile, prompt: list[int], ids: list[int]) -> tuple[JsonObject, str]:
    context = context_of(profile, prompt, stream=True)
    state, choices = fold.start(profile, context, prompt), []
    for at, token_id in enumerate(ids):
        chunk = TokenChunk(0, (token_id,), None, "stop" if at == len(ids) - 1 else None)
        state, chunks, _ = fold.step(profile, context, state, chunk)
        choices += [choice for told in chunks for choice in told["choices"]]
    told = summed(choices)
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in told["calls"]]
    return message_meaning({**told, "tool_calls": calls}), told["finish_reason"]


@pytest.mark.parametrize(
    "model", [m for m in MODELS if not m.mistral and m.tokenizer is None], ids=lambda model: model.name
)
def test_a_turn_is_read_as_it_was_written(frontend: Frontend, model: Model, tmp_path: Path) -> None:
    if not model.folder.exists():
        pytest.skip("the tokenizer is not there")
    if model.name == "llama2":
        pytest.skip("it has no chat template")
    profile = profile_of(model)
    server = server_of(model, model_folder(model, tmp_path))
    wrong, asked = [], 0
    for turn in TURNS:
        ids = written(profile, turn)
        if ids is None:
            continue
        asked += 1
        prompt, output = ids
        body = {"model": "m", "prompt_token_ids": prompt, "prompt_tokens": len(prompt), "chat_request": request_of()}
        meant = {"reasoning": turn.reasoning, "text": turn.text, "calls": list(turn.calls)}
        expected = spaced((meant, "tool_calls" if turn.calls else "stop"))
        for how, ours, ask in (("whole", read_whole, derender_whole), ("streamed", read_streamed, derender_streamed)):
            got = spaced(ours(profile, prompt, output))
            if got != expected:
                wrong.append(f"{turn.name} ({how}):\n  ours   {got}\n  meant  {expected}")
            if how == "streamed" and turn.name not in STREAMED:
                continue
            theirs = spaced(ask(frontend, server, body, output, "stop"))
            if (theirs != expected) != ((model.name, how) in KNOWN):
                wrong.append(f"{turn.name} ({how}):\n  theirs {theirs}\n  meant  {expected}")
    if not asked:
        pytest.skip("the template's prompt opens reasoning, and its turns have none")
    assert not wrong, "\n".join(wrong)
