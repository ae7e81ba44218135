"""Mistral's models: the library mistral-common writes their prompts, as token ids and never as text.

    <s>[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "get_weather", ...}}][/AVAILABLE_TOOLS]
    [INST]You are helpful.\\n\\nWeather in Oslo?[/INST][TOOL_CALLS][{"name": "get_weather", "arguments":
    {"city": "Oslo"}, "id": "a1b2c3d4e"}]</s>[TOOL_RESULTS]{"content": 12, "call_id": "a1b2c3d4e"}[/TOOL_RESULTS]

(v3, on one line). The layout depends on the version that the tokenizer's file names. The library splits a request into
special tokens and pieces of text; the worker's own tokenizer turns the pieces into token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.errors import ContextLengthExceeded, InvalidRequest, TokenyardError
from tasks.protocol.conversation import Conversation, JsonObject
from tasks.settings import MediaSettings
from workers.renderers.base import PromptRenderer, RenderedPrompt, RenderSettings, check_limits, cut_prompt
from workers.renderers.media import PromptMedia
from workers.renderers.messages import shape_messages
from workers.renderers.tools import template_tools
from workers.text.tokenizer import LoadedTokenizer, Tokenizer

try:
    from mistral_common.exceptions import InvalidToolException, InvalidToolSchemaException
    from mistral_common.protocol.instruct.normalize import get_normalizer
    from mistral_common.protocol.instruct.request import ChatCompletionRequest, ReasoningEffort
    from mistral_common.protocol.instruct.validator import ValidationMode, get_validator
    from mistral_common.tokens.tokenizers import instruct
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy, TokenizerVersion
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
except ModuleNotFoundError as error:
    raise TokenyardError(
        "the renderer `mistral` needs the library mistral-common: pip install 'tokenyard[mistral]'"
    ) from error
from pydantic import ValidationError

_INSTRUCT: Mapping[TokenizerVersion, Any] = {
    TokenizerVersion.v1: instruct.InstructTokenizerV1,
    TokenizerVersion.v2: instruct.InstructTokenizerV2,
    TokenizerVersion.v3: instruct.InstructTokenizerV3,
    TokenizerVersion.v7: instruct.InstructTokenizerV7,
    TokenizerVersion.v11: instruct.InstructTokenizerV11,
    TokenizerVersion.v13: instruct.InstructTokenizerV13,
    TokenizerVersion.v15: instruct.InstructTokenizerV15,
}
_EFFORTS = tuple(effort.value for effort in ReasoningEffort)
_CALL_ID_CHARS = 9


class MistralRenderer(PromptRenderer):
    """Has no chat templates: refuses requests with a template or template arguments."""

    def __init__(self, loaded: LoadedTokenizer, settings: RenderSettings) -> None:
        super().__init__(loaded, settings)
        if loaded.mistral_file is None:
            raise TokenyardError("the renderer `mistral` needs a tokenizer of Mistral's own, such as tekken.json")
        if settings.chat_template is not None:
            raise ValueError("the renderer `mistral` takes no chat template: remove chat_template from the settings")
        self._library = _library(loaded.mistral_file, loaded.tokenizer)
        version = self._library.instruct_tokenizer.tokenizer.version
        self._knows_effort = version.supports_model_settings

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """Render a conversation; raises InvalidRequest with the library's own reason."""
        limit = self._settings.max_model_len
        check_limits(conversation, limit)
        _check(conversation)
        messages = _messages(conversation.messages)
        chars = sum(map(_chars, messages))
        if conversation.tokenization.truncate_to is None and chars > limit * self._tokenizer.max_chars_per_token:
            # Tokenizing a text that cannot fit could take minutes.
            raise ContextLengthExceeded(
                f"the messages have {chars} characters, more than the model's context of {limit} tokens holds: "
                "shorten them",
                param="input_text",
            )
        return cut_prompt(self._encode(conversation, messages), conversation, limit)

    def _encode(self, conversation: Conversation, messages: list[JsonObject]) -> tuple[int, ...]:
        try:
            request: ChatCompletionRequest[Any] = ChatCompletionRequest.from_openai(
                messages=messages,
                tools=None if conversation.tools is None else template_tools(conversation.tools),
                continue_final_message=conversation.continue_final_message,
                reasoning_effort=conversation.reasoning_effort if self._knows_effort else None,
            )
            return tuple(self._library.encode_chat_completion(request).tokens)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            field = "tools" if error.title in ("Tool", "Function") else "messages"
            raise InvalidRequest(f"{error.title}: {wrong}", param=field) from error
        except (InvalidToolException, InvalidToolSchemaException) as error:
            raise InvalidRequest(str(error), param="tools") from error
        except Exception as error:  # the library may raise anything, also by assert, and its input is to blame
            field = "reasoning_effort" if "reasoning_effort" in str(error) else "messages"
            raise InvalidRequest(str(error) or type(error).__name__, param=field) from error


class _Tekken(Tekkenizer):
    """The library's tekken tokenizer, which leaves encoding and decoding to the worker's tokenizer."""

    worker_tokenizer: Tokenizer | None = None

    def encode(self, s: str, bos: bool, eos: bool) -> list[int]:
        assert self.worker_tokenizer is not None
        return [*[self.bos_id] * bos, *self.worker_tokenizer.encode(s), *[self.eos_id] * eos]

    def decode(self, tokens: list[int], special_token_policy: SpecialTokenPolicy = SpecialTokenPolicy.IGNORE) -> str:
        if self.worker_tokenizer is None:  # the library decodes every token while it loads
            return super().decode(tokens, special_token_policy)
        skip = special_token_policy == SpecialTokenPolicy.IGNORE
        return self.worker_tokenizer.decode(tokens, skip_special_tokens=skip)


def _library(file: Path, tokenizer: Tokenizer) -> MistralTokenizer[Any, Any, Any, Any, Any]:
    pieces: Tekkenizer | SentencePieceTokenizer
    if file.suffix == ".json":
        pieces = _Tekken.from_file(file)
        assert isinstance(pieces, _Tekken)
        pieces.worker_tokenizer = tokenizer
    else:
        pieces = SentencePieceTokenizer(file)
    return MistralTokenizer(
        _INSTRUCT[pieces.version](pieces),
        validator=get_validator(pieces.version, mode=ValidationMode.test),
        request_normalizer=get_normalizer(pieces.version, pieces.model_settings_builder),
    )


def _check(conversation: Conversation) -> None:
    if conversation.template is not None or conversation.template_arguments:
        raise InvalidRequest(
            "this model has no chat template: remove chat_template and chat_template_kwargs", param="chat_template"
        )
    effort = conversation.reasoning_effort
    if effort is not None and effort not in _EFFORTS:
        raise InvalidRequest(
            f"reasoning_effort is {effort!r}; this model takes {', '.join(_EFFORTS)}", param="reasoning_effort"
        )
    if not conversation.messages:
        raise InvalidRequest("messages is empty: send at least one", param="messages")
    answered = conversation.messages[-1].get("role") == "assistant"
    if conversation.continue_final_message and conversation.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message continues the last message, add_generation_prompt begins a new one: set one",
            param="continue_final_message",
        )
    if conversation.add_generation_prompt and answered:
        raise InvalidRequest(
            "the last message is the assistant's: continue it with continue_final_message, or add a user message",
            param="add_generation_prompt",
        )
    if conversation.continue_final_message and not answered:
        raise InvalidRequest(
            "continue_final_message is set, but the last message is not the assistant's", param="continue_final_message"
        )


def _messages(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """Messages as the library reads them: as they were sent, except for the tool calls."""
    sent = list(messages)
    shaped = shape_messages(sent, "string", PromptMedia(MediaSettings()))
    return [_message(message, tidy.get("tool_calls", [])) for message, tidy in zip(sent, shaped, strict=True)]


def _message(message: JsonObject, calls: list[JsonObject]) -> JsonObject:
    match message["role"]:
        case "assistant":
            return {**message, "tool_calls": [_with_short_id(call, "id") for call in calls]}
        case "tool":
            return _with_short_id(message, "tool_call_id")
    return message


def _with_short_id(value: JsonObject, name: str) -> JsonObject:
    """Call ids have nine characters; a longer one is cut to its end, which is what makes it unique."""
    return {**value, name: value[name][-_CALL_ID_CHARS:]} if isinstance(value.get(name), str) else value


def _chars(message: JsonObject) -> int:
    content = message.get("content") or ""
    return len(content) if isinstance(content, str) else sum(len(part.get("text") or "") for part in content)
