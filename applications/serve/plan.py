"""From the body of a request to the texts that the engine decodes for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import lade
from lade.applications.images.prompt import Prompt
from lade.applications.serve.chat_request import ChatRequest
from lade.applications.serve.errors import bad
from lade.applications.serve.grammar import OBJECT, GrammarMask, Grammars
from lade.applications.serve.images import images_in
from lade.applications.serve.messages import Message, joined
from lade.applications.serve.prompts import Prompts
from lade.applications.serve.sampling import as_ids, generate_arguments, seed_of
from lade.applications.serve.schema import FORMAT, CompletionRequest, Sampling
from lade.applications.serve.shapes import ObjectFormat, SchemaFormat, StructuredOutputs
from lade.applications.serve.templated import Templated
from lade.applications.serve.text import AnswerText, Detokenizer, StopSearch
from lade.applications.serve.tools import for_template

DEFAULT_TOKENS = 16  # of a completion, as OpenAI has it
UNLIMITED = 1 << 30
NO_END = 1 << 30  # no token has this id


@dataclass(frozen=True, slots=True)
class Text:
    """One text to decode.

    Attributes:
        prompt: its token ids.
        most: tokens of the answer; 0 where only the prompt's log probabilities are wanted.
        answer: its text.
        ends: tokens that end it.
        generate: arguments of `model.generate`, which say what the text is.
        own: arguments of `lade.Engine.submit` that do not change it.
    """

    prompt: list[int]
    most: int
    answer: AnswerText
    ends: frozenset[int]
    generate: dict[str, Any]
    own: dict[str, Any]


class Planner:
    """Plans requests; for any thread.

    Args:
        ends: tokens that end a text.
        auto: whether drafting reads references and tokens that must follow.
    """

    def __init__(
        self, prompts: Prompts, grammars: Grammars, ends: frozenset[int], device: torch.device, auto: bool = True
    ) -> None:
        self.prompts, self.grammars, self.ends, self.device, self.auto = prompts, grammars, ends, device, auto

    def prompt(self, messages: Sequence[Message], request: Templated) -> Prompt:
        """The prompt of a conversation."""
        told = [_as_template(message, self.prompts.shows_calls) for message in messages]
        contents = {f"messages.{index}.content": message.content for index, message in enumerate(messages)}
        found = (each for field, content in contents.items() for each in images_in(content, field))
        images = [(place, image.encoded) for place, image in found]
        tools, options = request.functions_told, request.template_options
        if images:
            return self.prompts.of_images(told, images, tools, options)
        return Prompt(self.prompts.of_messages(told, tools, options))

    def chat(self, request: ChatRequest, corpus: lade.Corpus | None = None) -> list[Text]:
        """
        Args:
            corpus: texts that answers may repeat.
        """
        prompt = self.prompt(request.messages, request)
        stops = (*request.stops, *self.prompts.chat_stops)
        own: dict[str, Any] = {"logprobs": request.top, "corpus": corpus}
        if request.prediction is not None and self.auto:
            own["reference"] = self.prompts.of_prediction(joined(request.prediction.content)) or None
        special = bool(request.functions_offered) and self.prompts.keeps_special
        return list(self._choices(request, [prompt], request.asked_tokens, stops, own, special))

    def completion(self, request: CompletionRequest, corpus: lade.Corpus | None = None) -> list[Text]:
        """Arguments as of `chat`."""
        prompts = [Prompt(self.prompts.of_prompt(prompt)) for prompt in request.prompts]
        most = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
        prompt_logprobs = bool(request.echo and request.logprobs is not None)
        own = {"logprobs": request.logprobs, "prompt_logprobs": prompt_logprobs, "corpus": corpus}
        return list(self._choices(request, prompts, most, request.stops, own))

    def _choices(
        self,
        request: Sampling,
        prompts: Sequence[Prompt],
        asked: int | None,
        stops: tuple[str, ...],
        own: dict[str, Any],
        special: bool = False,
    ) -> Iterator[Text]:
        """`special`: whether special tokens are text."""
        ends = self._ends(request)
        for prompt, inputs in ((each.ids, each.inputs) for each in prompts):
            room = int(min(self.prompts.positions - len(prompt), UNLIMITED))
            most = room if asked is None else min(asked, room)
            for choice in range(request.n or 1):
                mask = self._mask(request, len(prompt))
                search = StopSearch(stops if most else ())  # else the token that is decoded is not told
                answer = AnswerText(Detokenizer(self.prompts.tokenizer, prompt, special), search, ends)
                generate = generate_arguments(request, len(prompt), max(1, most), answer, self.prompts.vocabulary, mask)
                if ends != self.ends:
                    generate["eos_token_id"] = sorted(ends) or NO_END
                drafts: dict[str, Any] = {"drafts": request.lade.speculation, "seed": seed_of(request, choice)}
                if mask is not None and self.auto:
                    drafts["forced"] = mask.forced
                generate |= as_ids(prompt, self.device) | inputs
                yield Text(prompt, most, answer, ends, generate, own | drafts)

    def _ends(self, request: Sampling) -> frozenset[int]:
        """The tokens that end a text of this request."""
        asked = frozenset(request.stop_token_ids or ())
        if asked and max(asked) >= self.prompts.vocabulary:
            raise bad("stop_token_ids", f"token ids from 0 to {self.prompts.vocabulary - 1}", max(asked))
        return asked if request.ignore_eos else self.ends | asked

    def _mask(self, request: Sampling, prompt_length: int) -> GrammarMask | None:
        if isinstance(request, ChatRequest) and request.must_call:
            return self.grammars.call_mask(self.prompts.tool_format, request.must_call, prompt_length)
        if request.structured_outputs is not None:
            return self._structured(request.structured_outputs, prompt_length)
        wanted = request.response_format
        if isinstance(wanted, SchemaFormat):
            return self._formed(request, wanted.json_schema.definition, prompt_length, f"{FORMAT}.json_schema.schema")
        return self._formed(request, OBJECT, prompt_length, FORMAT) if isinstance(wanted, ObjectFormat) else None

    def _formed(self, request: Sampling, schema: Mapping[str, Any], prompt_length: int, param: str) -> GrammarMask:
        """The mask of JSON, or of a call where the answer may be one."""
        text = self.grammars.mask(schema, prompt_length, param)
        functions = request.functions_offered if isinstance(request, ChatRequest) else []
        if not functions:
            return text
        return self.grammars.call_mask(self.prompts.tool_format, functions, prompt_length, schema)

    def _structured(self, wanted: StructuredOutputs, prompt_length: int) -> GrammarMask:
        if wanted.regex is not None:
            return self.grammars.regex_mask(wanted.regex, prompt_length, "structured_outputs.regex")
        if wanted.choice is not None:
            return self.grammars.choice_mask(wanted.choice, prompt_length, "structured_outputs.choice")
        schema = OBJECT if wanted.definition is None else wanted.definition
        return self.grammars.mask(schema, prompt_length, "structured_outputs.json")


def _as_template(message: Message, shows_calls: bool) -> dict[str, Any]:
    """A message as chat templates read it, which know no developers. Where they do not read calls, these are text."""
    found: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": message.told}
    calls = for_template([call.model_dump() for call in message.tool_calls or []])
    if calls and shows_calls:
        found["tool_calls"] = calls
    elif calls:
        found["content"] += "".join(json.dumps(call["function"], ensure_ascii=False) for call in calls)
    given = {"name": message.name, "tool_call_id": message.tool_call_id}
    return found | {name: value for name, value in given.items() if value is not None}
