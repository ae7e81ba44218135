from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import InvalidRequest
from tasks.protocol.conversation import Conversation, Tokenization
from tasks.settings import MediaSettings
from workers.render.requests import EngineFacts, resolve_request
from workers.renderers.base import RenderedPrompt, make_renderer
from workers.renderers.media import PromptMedia
from workers.text.tokenizer import LoadedTokenizer

LIMITS: Any = {"image": 2, "audio": 1}
PARTS = (
    "{%- for message in messages %}{{ message.role }}:"
    "{%- for part in message.content %}{% if part.type == 'image' %}<img>{% elif part.type == 'audio' %}<snd>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
TEXT = "{%- for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}"
SAY = {"type": "text", "text": "What is it?"}


def image(url: str | None = "https://a.example/cat.png", **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def render(loaded: LoadedTokenizer, *parts: Any, template: str = PARTS, **settings: Any) -> RenderedPrompt:
    media = MediaSettings(**{"limits": LIMITS, **settings})
    renderer = make_renderer("jinja", loaded, max_model_len=10_000, chat_template=template, media=media)
    messages = ({"role": "user", "content": list(parts)},)
    return renderer.render(Conversation(messages, tokenization=Tokenization(return_offsets=True)))


def test_media_travel_to_the_engine_in_their_order(small):
    sound = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
    rendered = render(small, image(), SAY, sound, {"image_url": "data:image/png;base64,iVBO", "uuid": 7})
    assert rendered.text == "user:<img>What is it?<snd><img>"
    assert rendered.content_parts == (
        {"type": "image_url", "url": "https://a.example/cat.png"},
        {"type": "audio_url", "url": "data:audio/wav;base64,UklG"},
        {"type": "image_url", "url": "data:image/png;base64,iVBO", "uuid": "7"},
    )
    assert rendered.offsets is None, "the engine's prompt is another"
    fields = resolve_request(Conversation(({"role": "user", "content": "x"},)), rendered, EngineFacts(10_000))
    assert fields["content_parts"] == list(rendered.content_parts)


def test_a_response_s_image_is_one_too(small):
    assert render(small, {"type": "input_image", "image_url": "http://a.example/x"}).content_parts == (
        {"type": "image_url", "url": "http://a.example/x"},
    )


def test_what_the_engine_has_cached_needs_no_url(small):
    part = {"type": "image_url", "image_url": None, "uuid": "cat"}
    assert render(small, part).content_parts == ({"type": "image_url", "url": None, "uuid": "cat"},)


def test_a_template_of_text_gets_placeholders(small):
    settings: dict[str, Any] = {"template": TEXT, "placeholders": {"image": "<image>"}}
    assert render(small, SAY, image(), image(), **settings).text == "user:<image>\n<image>\nWhat is it?\n"
    written = {"type": "text", "text": "Is <image> a cat?"}
    assert render(small, written, image(), **settings).text == "user:Is <image> a cat?\n"
    assert render(small, image(), **settings).text == "user:<image>\n"
    for parts in ([written, written, image()], [{"type": "audio_url", "audio_url": {"url": "http://a.example/x"}}]):
        with pytest.raises(InvalidRequest) as caught:
            render(small, *parts, **settings)
        assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "parts",
    [
        [image(), image(), image()],
        [{"type": "video_url", "video_url": {"url": "http://a.example/x.mp4"}}],
        [{"type": "image_embeds", "image_embeds": "AAAA"}],
        [image(None)],
        [image(uuid="a", image_url={"url": 3})],
        [{"type": "input_audio", "input_audio": {"data": ""}}],
    ],
)
def test_what_the_model_does_not_take(small, parts):
    with pytest.raises(InvalidRequest) as caught:
        render(small, *parts)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "url",
    [
        "https://b.example/cat.png",
        "https://a.example.b.example/cat.png",
        "https://a.example@b.example/cat.png",
        "http://b.example\\@a.example/cat.png",
        "http://a.example\t/cat.png",
        "ftp://a.example/cat.png",
        "http:///cat.png",
        "http://[a.example/cat.png",
        "file:///etc/passwd",
        "file:///media/../etc/passwd",
        "file:///media/%2e%2e/etc/passwd",
        "file:///media",
        "file:///mediaset/cat.png",
        "data:image/png,iVBO",
        "cat.png",
    ],
)
def test_urls_outside_of_the_allow_lists(url):
    media = PromptMedia(MediaSettings(limits=LIMITS, allowed_domains=("a.example",), allowed_local_path="/media/"))
    with pytest.raises(InvalidRequest):
        media.add(image(url))


@pytest.mark.parametrize(
    "url", ["HTTPS://A.example:8443/cat.png?x=1", "file:///media/cats/1.png", "data:image/png;base64,iVBO"]
)
def test_urls_inside_of_the_allow_lists(url):
    media = PromptMedia(MediaSettings(limits=LIMITS, allowed_domains=("a.example",), allowed_local_path="/media"))
    assert media.add(image(url)) == "image"
    assert media.content_parts == [{"type": "image_url", "url": url}]


@pytest.mark.parametrize("renderer", ["harmony", "deepseek_v32", "deepseek_v4"])
def test_families_of_text_alone_refuse_media(small, renderer):
    made = make_renderer(renderer, small, max_model_len=10_000)
    with pytest.raises(InvalidRequest) as caught:
        made.render(Conversation(({"role": "user", "content": [image(), SAY]},)))
    assert caught.value.param == "messages"
