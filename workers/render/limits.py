"""What an engine would refuse, refused before the request is queued for it: the client learns it at once, and by name.

check_engine_request(profile.tokenizer, {"sampling_params": {"logit_bias": {"999999": 1.0}, ...}, ...})
InvalidRequest("logit_bias names the token id 999999, which the model does not have", param="logit_bias")

The routes of the render stage alone answer as the reference's do, which leaves this to the engine.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import regex

from tasks.errors import InvalidRequest
from tasks.protocol.base import JsonObject
from workers.text.tokenizer import Tokenizer

_TOKEN_LISTS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "prompt_logprob_token_ids")


def check_engine_request(tokenizer: Tokenizer, fields: JsonObject) -> None:
    """Check the parts of an engine's request that depend on the model or on a grammar.

    Raises:
        InvalidRequest: a token id that the model does not have, a JSON schema that is none, or a regular expression
            that does not compile; `param` names the field.
    """
    sampling = fields.get("sampling_params") or {}
    _check_tokens(tokenizer, sampling)
    constraint = sampling.get("structured_outputs") or {}
    if constraint.get("regex") is not None:
        _check_regex(constraint["regex"])
    if constraint.get("json") is not None:
        _check_schema(constraint["json"])


def _check_tokens(tokenizer: Tokenizer, sampling: JsonObject) -> None:
    named = {"logit_bias": [int(token) for token in sampling.get("logit_bias") or ()]}
    named |= {name: sampling.get(name) or [] for name in _TOKEN_LISTS}
    for name, token_ids in named.items():
        for token_id in token_ids:
            if tokenizer.token_of(token_id) is None:
                raise InvalidRequest(f"{name} names the token id {token_id}, which the model does not have", param=name)


def _check_regex(pattern: Any) -> None:
    try:
        regex.compile(pattern)
    except (regex.error, TypeError, OverflowError, RecursionError) as error:
        raise InvalidRequest(
            f"structured_outputs.regex does not compile: {error}", param="structured_outputs.regex"
        ) from error


def _check_schema(schema: Any) -> None:
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        where = ".".join(map(str, error.path))
        raise InvalidRequest(
            f"the JSON schema is not valid{f' at {where}' if where else ''}: {error.message[:300]}",
            param="response_format",
        ) from error
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise InvalidRequest(f"the JSON schema cannot be read: {error}", param="response_format") from error
