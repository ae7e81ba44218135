"""Images, audio and video of a prompt, which go to the engine as the client sent them; a worker never fetches them.

A `GenerateRequest` lists them in order (vLLM 0.33, `entrypoints/scale_out/token_in_token_out/protocol.py`), and its
token ids have one placeholder for each:

    "content_parts": [{"type": "image_url", "url": "https://example.com/cat.png", "uuid": "cat"}]

media = PromptMedia(settings)
media.add({"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}})       # "image"
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import JsonObject
from tasks.settings import MediaSettings, Modality

_MODALITIES: dict[str, Modality] = {
    "image_url": "image",
    "input_image": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
"""Types of media parts that an engine can resolve by itself."""

_TENSORS = frozenset(("image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"))
"""Types of media parts that only a process with the model's own code can read."""

MEDIA_KINDS = _MODALITIES.keys() | _TENSORS


class PromptMedia:
    """Collects the media of one prompt and checks each against the model's settings; raises InvalidRequest."""

    def __init__(self, settings: MediaSettings) -> None:
        self._settings = settings
        self._counts: Counter[str] = Counter()
        self.content_parts: list[JsonObject] = []
        """The media for the engine to resolve, in the order of the prompt."""

    def add(self, part: Mapping[str, Any]) -> Modality:
        """Add a content part; its kind is its `type`, or its media field if it has no type or has a `uuid`."""
        kind = part.get("type")
        if kind is None or part.get("uuid") is not None:
            kind = next((name for name in part if name in MEDIA_KINDS), kind)
        if kind not in _MODALITIES:
            raise InvalidRequest(
                f"content parts of type {kind!r} are not supported; media parts may be {', '.join(_MODALITIES)}",
                param="messages",
            )
        modality = _MODALITIES[kind]
        self._counts[modality] += 1
        most = self._settings.limits.get(modality, 0)
        if not most:
            raise InvalidRequest(
                f"this model takes no {modality}: remove the content part of type {kind!r}", param="messages"
            )
        if self._counts[modality] > most:
            raise InvalidRequest(
                f"this model takes at most {most} {modality} parts in a prompt: remove the others", param="messages"
            )
        url, uuid = _url_of(kind, part), part.get("uuid")
        if url is None and uuid is None:
            raise InvalidRequest(f"a content part of type {kind!r} has neither a URL nor a uuid", param="messages")
        if url is not None:
            self._check(url)
        entry = {"type": f"{modality}_url", "url": url}
        self.content_parts.append(entry if uuid is None else {**entry, "uuid": str(uuid)})
        return modality

    def write_placeholders(self, text: str, modalities: Iterable[Modality]) -> str:
        """A message's text with a placeholder for each of its media, for templates that read content as text.

        Placeholders that the client wrote into the text count; the missing ones go before it, one per line.
        """
        missing: list[str] = []
        for modality, count in Counter(modalities).items():
            placeholder = self._settings.placeholders.get(modality)
            if placeholder is None:
                raise InvalidRequest(
                    f"this model has no placeholder for {modality}: set media.placeholders in its settings",
                    param="messages",
                )
            written = text.count(placeholder)
            if written > count:
                raise InvalidRequest(
                    f"the text has {placeholder!r} {written} times, but the message has {count} {modality} parts",
                    param="messages",
                )
            missing += [placeholder] * (count - written)
        return "\n".join([*missing, text] if text else missing)

    def _check(self, url: str) -> None:
        if url[:5].lower() == "data:":
            head, comma, _ = url.partition(",")
            if not comma or not head.endswith(";base64"):
                raise InvalidRequest("data URLs must be base64: data:<type>;base64,<data>", param="messages")
            return
        # Parsers disagree on where the host ends in a URL with one of these.
        if "\\" in url or any(character <= " " for character in url):
            raise InvalidRequest(
                "a media URL has a backslash, white space or a control character: percent-encode it", param="messages"
            )
        try:
            parsed = urlsplit(url)
            host = parsed.hostname
        except ValueError:
            raise InvalidRequest("a media URL is malformed", param="messages") from None
        if parsed.scheme == "file":
            self._check_path(parsed)
        elif parsed.scheme not in ("http", "https") or host is None:
            raise InvalidRequest("media URLs must be http, https, data or file URLs", param="messages")
        elif self._settings.allowed_domains and host not in self._settings.allowed_domains:
            raise InvalidRequest(
                f"media from {host!r} are not allowed: it is not in the setting media.allowed_domains", param="messages"
            )

    def _check_path(self, parsed: SplitResult) -> None:
        allowed = self._settings.allowed_local_path
        if allowed is None:
            raise InvalidRequest(
                "file URLs are not allowed: the setting media.allowed_local_path is not set", param="messages"
            )
        path = posixpath.normpath(unquote(parsed.netloc + parsed.path))
        if not path.startswith(posixpath.normpath(allowed).rstrip("/") + "/"):
            raise InvalidRequest(
                "a media file is outside the folder of the setting media.allowed_local_path", param="messages"
            )


def _url_of(kind: str, part: Mapping[str, Any]) -> str | None:
    given = part.get(kind) if kind != "input_image" else part.get("image_url", part.get("input_image"))
    if kind == "input_audio" and isinstance(given, Mapping):
        data = given.get("data")
        given = f"data:audio/{given.get('format', '')};base64,{data}" if data else None
    elif isinstance(given, Mapping):
        given = given.get("url")
    if given is not None and not isinstance(given, str):
        raise InvalidRequest(f"the URL of a content part of type {kind!r} must be a string", param="messages")
    return given or None
