"""The renderer interface: a conversation to prompt token ids.

renderer = make_renderer("jinja", load(folder), max_model_len=8192)
renderer.render(conversation).token_ids
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol

from tasks.errors import ContextLengthExceeded, InvalidRequest
from tasks.protocol.conversation import Conversation, JsonObject, Prompt
from tasks.settings import MediaSettings
from workers.renderers.media import PromptMedia
from workers.text.tokenizer import LoadedTokenizer, Tokenizer

RENDERERS = {
    "deepseek_v32": "workers.renderers.deepseek_v32:DeepSeekV32Renderer",
    "deepseek_v4": "workers.renderers.deepseek_v4:DeepSeekV4Renderer",
    "harmony": "workers.renderers.harmony:HarmonyRenderer",
    "jinja": "workers.renderers.jinja:JinjaRenderer",
    "mistral": "workers.renderers.mistral:MistralRenderer",
}
"""Renderers by their name in a model's settings; `module:ATTR` takes (LoadedTokenizer, RenderSettings)."""

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt's token ids, the text they came from, and, if requested, each token's (start, end) in that text."""

    token_ids: tuple[int, ...]
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] | None = None
    content_parts: tuple[JsonObject, ...] = ()
    """Media that the engine puts in place of their placeholders."""


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """A model's settings for rendering.

    `chat_template` is the template's source; None means the tokenizer's own. Template arguments of the request override
    `default_template_arguments`.
    """

    max_model_len: int
    chat_template: str | None = None
    default_template_arguments: Mapping[str, Any] = field(default_factory=dict)
    trust_request_chat_template: bool = False
    media: MediaSettings = field(default_factory=MediaSettings)


class Renderer(Protocol):
    """Renders one model's prompts; safe to share between threads."""

    @property
    def takes_late_system(self) -> bool:
        """Whether system messages may come after the first message."""

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """Render a conversation; raises InvalidRequest."""

    def render_prompt(self, prompt: Prompt) -> RenderedPrompt:
        """Render the prompt of a plain completion; raises InvalidRequest."""


class PromptRenderer:
    """The base of all renderers, which renders plain completions."""

    def __init__(self, loaded: LoadedTokenizer, settings: RenderSettings) -> None:
        self._tokenizer = loaded.tokenizer
        self._templates = loaded.templates
        self._settings = settings

    @property
    def takes_late_system(self) -> bool:
        """Whether system messages may come after the first message."""
        return False

    def render_prompt(self, prompt: Prompt) -> RenderedPrompt:
        """Render the prompt of a plain completion; raises InvalidRequest."""
        check_limits(prompt, self._settings.max_model_len)
        if prompt.token_ids is not None:
            return cut_prompt(prompt.token_ids, prompt, self._settings.max_model_len)
        return encode_prompt(self._tokenizer, prompt.text or "", prompt, self._settings.max_model_len)


class TextRenderer(PromptRenderer, ABC):
    """A renderer that writes the prompt as text and then tokenizes it."""

    @abstractmethod
    def write(self, conversation: Conversation, media: PromptMedia) -> str:
        """The prompt's text; images, audio and video are added to `media`. Raises InvalidRequest."""

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """Render a conversation; raises InvalidRequest."""
        self._check_trust(conversation)
        check_limits(conversation, self._settings.max_model_len)
        media = PromptMedia(self._settings.media)
        text = self.write(conversation, media)
        rendered = encode_prompt(self._tokenizer, text, conversation, self._settings.max_model_len)
        if not media.content_parts:
            return rendered
        # The engine expands the placeholders, so offsets would not fit the tokens that it reads.
        return replace(rendered, offsets=None, content_parts=tuple(media.content_parts))

    def _check_trust(self, conversation: Conversation) -> None:
        if self._settings.trust_request_chat_template:
            return
        if conversation.template is not None or conversation.template_arguments.get("chat_template") is not None:
            raise InvalidRequest(
                "this model accepts no chat template from a request: leave it out, or set trust_request_chat_template "
                "in the model's settings",
                param="chat_template",
            )


def make_renderer(
    name: str,
    loaded: LoadedTokenizer,
    *,
    max_model_len: int,
    chat_template: str | None = None,
    default_template_arguments: Mapping[str, Any] | None = None,
    trust_request_chat_template: bool = False,
    media: MediaSettings | None = None,
) -> Renderer:
    """The renderer with this name, for a loaded tokenizer; raises ValueError for an unknown name."""
    if name not in RENDERERS:
        raise ValueError(f"there is no renderer {name!r}; known are {', '.join(sorted(RENDERERS))}")
    module, attribute = RENDERERS[name].split(":")
    make: Callable[[LoadedTokenizer, RenderSettings], Renderer] = getattr(import_module(module), attribute)
    return make(
        loaded,
        RenderSettings(
            max_model_len,
            chat_template,
            default_template_arguments or {},
            trust_request_chat_template,
            media or MediaSettings(),
        ),
    )


def quiet_effort(renderer: Renderer) -> str:
    """The reasoning effort that turns thinking off: `none`, or `low` if the model refuses or ignores `none`."""

    def probe(effort: str) -> tuple[int, ...] | None:
        try:
            return renderer.render(
                Conversation(({"role": "user", "content": "Hi"},), reasoning_effort=effort)
            ).token_ids
        except InvalidRequest:
            return None

    quiet = probe("none")
    return "low" if quiet is None or quiet in map(probe, _EFFORTS) else "none"


def template_arguments(conversation: Conversation, defaults: Mapping[str, Any]) -> JsonObject:
    """The arguments that a chat template gets besides messages and tools, from the request and the model's defaults.

    Fields of the request override its `chat_template_kwargs`, which override the defaults; None and "auto" count as
    not set. A reasoning effort also turns thinking on, or off if it is "none".
    """
    arguments: JsonObject = dict(conversation.template_arguments)
    effort = conversation.reasoning_effort
    if effort is not None:
        arguments.setdefault("enable_thinking", effort != "none")
    fields = {
        "add_generation_prompt": conversation.add_generation_prompt,
        "continue_final_message": conversation.continue_final_message,
        "documents": None if conversation.documents is None else list(conversation.documents),
        "reasoning_effort": effort,
    }
    arguments |= given(fields)
    return dict(defaults) | given(arguments) if defaults else arguments


def given(values: Mapping[str, Any]) -> JsonObject:
    """The values that are set: neither None nor "auto"."""
    return {name: value for name, value in values.items() if value is not None and value != "auto"}


def check_limits(request: Conversation | Prompt, max_model_len: int) -> None:
    """Raises InvalidRequest if the output length or the prompt truncation exceeds the model's context."""
    output, keep = request.max_output_tokens, request.tokenization.truncate_to
    if output is not None and output > max_model_len:
        raise ContextLengthExceeded(
            f"{request.max_output_tokens_param} is {output}, more than the model's context of {max_model_len} tokens: "
            "lower it",
            param=request.max_output_tokens_param,
        )
    if keep is not None and keep > max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {keep}, more than the model's context of {max_model_len} tokens: lower it",
            param="truncate_prompt_tokens",
        )


def encode_prompt(
    tokenizer: Tokenizer, text: str, request: Conversation | Prompt, max_model_len: int
) -> RenderedPrompt:
    """Tokenize a prompt and cut it to `truncate_to`; raises ContextLengthExceeded if it is still too long."""
    tokenization = request.tokenization
    max_chars = max_model_len * tokenizer.max_chars_per_token
    skipped = 0
    source = text
    if len(text) > max_chars:
        # Tokenizing a text that cannot fit could take minutes.
        if tokenization.truncate_to is None:
            raise ContextLengthExceeded(
                f"the prompt has {len(text)} characters, but the model's context of {max_model_len} tokens holds at "
                f"most {max_chars}: shorten it",
                param="input_text",
            )
        if tokenization.truncation_side == "left":
            skipped = len(text) - max_chars
            source = text[skipped:]
        elif tokenization.truncation_side == "right":
            source = text[:max_chars]
    keep = _prompt_budget(request, max_model_len)
    specials = tokenization.add_special_tokens
    offsets: list[tuple[int, int]] | None = None
    if tokenization.return_offsets or (keep is not None and tokenization.truncation_side is None):
        token_ids, offsets = tokenizer.encode_with_offsets(
            source,
            add_special_tokens=specials,
            keep_last=keep if tokenization.truncation_side is None else None,
        )
        if skipped:
            # Special tokens are not in the text, and keep (0, 0).
            offsets = [(a + skipped, b + skipped) if (a, b) != (0, 0) else (0, 0) for a, b in offsets]
    else:
        token_ids = tokenizer.encode(source, add_special_tokens=specials)
    kept = _kept(keep, tokenization.truncation_side, len(token_ids))
    token_ids = token_ids[kept]
    check_length(len(token_ids), max_model_len)
    return RenderedPrompt(
        tuple(token_ids), text, tuple(offsets[kept]) if offsets is not None and tokenization.return_offsets else None
    )


def cut_prompt(token_ids: tuple[int, ...], request: Conversation | Prompt, max_model_len: int) -> RenderedPrompt:
    """Cut token ids to `truncate_to`; raises ContextLengthExceeded if they are still too many."""
    keep = _prompt_budget(request, max_model_len)
    kept = token_ids[_kept(keep, request.tokenization.truncation_side, len(token_ids))]
    check_length(len(kept), max_model_len)
    return RenderedPrompt(kept)


def check_length(prompt_tokens: int, max_model_len: int) -> None:
    """Raises ContextLengthExceeded if the prompt is longer than the context, and InvalidRequest if it is empty."""
    if prompt_tokens > max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {prompt_tokens} tokens, but the model's context holds {max_model_len} with the output: "
            "shorten it",
            param="input_tokens",
        )
    if not prompt_tokens:
        raise InvalidRequest("the prompt has no tokens: it needs at least one")


def check_room(prompt_tokens: int, max_model_len: int) -> int:
    """How many output tokens fit after the prompt; raises ContextLengthExceeded if none do."""
    room = max_model_len - prompt_tokens
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt has {prompt_tokens} tokens, which leaves no room for output in the model's context of "
            f"{max_model_len}: shorten it",
            param="max_tokens",
        )
    return room


def _prompt_budget(request: Conversation | Prompt, max_model_len: int) -> int | None:
    """How many prompt tokens to keep; None for all of them."""
    keep = request.tokenization.truncate_to
    if keep is None or keep >= 0:
        return keep
    # Leave room for one output token, unless the request wants none.
    return max_model_len if request.max_output_tokens == 0 else max_model_len - 1


def _kept(keep: int | None, side: str | None, length: int) -> slice:
    if keep is None or keep >= length:
        return slice(None)
    return slice(keep) if side == "right" else slice(length - keep, None)
