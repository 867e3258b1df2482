"""Generating text in this process: `accrt.LLM`.

    llm = accrt.LLM("./Qwen2.5-0.5B-Instruct")
    for output in llm.generate(["The sky is", "Water is"], max_tokens=20):
        print(output.text)
    print(llm.chat([{"role": "user", "content": "Hello"}]).text)
    async for piece in llm.stream("Once upon a time"):
        print(piece.text, end="")

Parameters have the names that the server knows (accrt.serve.PARAMETERS).
"""

from __future__ import annotations

import collections
import numbers
import os
from typing import TYPE_CHECKING, Any, AsyncIterator, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import _ffi, errors
from ._library import lib, never_raises, not_copied
from .errors import Error
from .serve import embedding as _embedding
from .serve import engine as _engine
from .serve import loading as _load
from .serve import options as _options
from .serve.adapters import Adapters
from .serve.calls import Calls, News, join
from .serve.fitting import Wanted
from .serve.parameters import BadParameter, Grammar, Limits, Request, checked, grammar_of, shown
from .serve.reasoning import Asked as Reasoning
from .serve.tools import Asked
from .serve.tools import asked as asked_of
from .serve.text import find_reasoning, find_stops, generation_prompt, limited, template_names

if TYPE_CHECKING:
    import asyncio

Prompt = Union[str, Sequence[int]]
Message = Dict[str, Any]


class Completion:
    """One continuation of a prompt."""

    def __init__(self, index: int) -> None:
        self.index, self.text, self.finish_reason = index, "", None
        #: what the model wrote before its answer, between the marks of its reasoning
        self.reasoning = ""
        self.token_ids: List[int] = []
        #: for each token, its own (id, log probability) and those of the alternatives; None if not
        #: asked for
        self.logprobs: Optional[list] = None
        #: calls of tools, as a message of OpenAI's has them: `id`, `type`, `function` with `name`
        #: and `arguments`, which is JSON
        self.tool_calls: List[Dict[str, Any]] = []

    def add(self, event: _engine.Event, calls: Optional[Calls] = None) -> None:
        news = _called(event, calls)
        self.text += news.text
        self.reasoning += news.reasoning
        join(self.tool_calls, news.calls)
        self.token_ids += event.tokens
        if event.logprobs is not None:
            self.logprobs = (self.logprobs or []) + event.logprobs
        if event.finish_reason is not None:
            self.finish_reason = _reason(event, bool(self.tool_calls))

    @property
    def message(self) -> Message:
        """The message to append to the conversation."""
        made: Message = {"role": "assistant", "content": self.text}
        if self.reasoning:
            made["reasoning_content"] = self.reasoning
        return {**made, "tool_calls": self.tool_calls} if self.tool_calls else made

    def __repr__(self) -> str:
        return f"Completion(index={self.index}, text={self.text!r}, finish_reason={self.finish_reason!r})"


class Output:
    """The result of a prompt. `text`, `token_ids` and `finish_reason` are those of the first
    continuation."""

    def __init__(self, prompt: Optional[Prompt], prompt_token_ids: Sequence[int], n: int, asked: Optional[Asked] = None, reasoning: Optional[Reasoning] = None) -> None:
        self.prompt, self.prompt_token_ids = prompt, list(prompt_token_ids)
        self.completions = [Completion(i) for i in range(n)]
        self.cached_tokens = 0
        #: for each token of the prompt, its own (id, log probability) and those of the
        #: alternatives; None for the first; None if not asked for
        self.prompt_logprobs: Optional[list] = None
        self.embedding: Optional[bytes] = None
        self._calls = _parsers(asked, reasoning, n)

    @property
    def reasoning(self) -> str:
        return self.completions[0].reasoning

    @property
    def tool_calls(self) -> List[Dict[str, Any]]:
        return self.completions[0].tool_calls

    @property
    def message(self) -> Message:
        return self.completions[0].message

    @property
    def text(self) -> str:
        return self.completions[0].text

    @property
    def token_ids(self) -> List[int]:
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> Optional[str]:
        return self.completions[0].finish_reason

    def __repr__(self) -> str:
        return f"Output({self.completions!r})"


class Piece:
    """A piece of a stream: new text and new tokens."""

    def __init__(self, event: _engine.Event, news: Optional[News] = None, called: bool = False) -> None:
        found = _called(event, None) if news is None else news
        self.index, self.text, self.token_ids = event.sequence, found.text, list(event.tokens)
        #: the next piece of the reasoning, which comes before the answer
        self.reasoning = found.reasoning
        #: pieces of calls of tools, as OpenAI's streams have them
        self.tool_calls = found.calls
        self.logprobs, self.finish_reason = event.logprobs, _reason(event, called)
        #: of the first piece, where they were asked for: as Output has them
        self.prompt_logprobs: Optional[list] = None
        if event.of_prompt:
            self.token_ids, self.logprobs, self.prompt_logprobs = [], None, _scores(event)

    def __repr__(self) -> str:
        return f"Piece(index={self.index}, text={self.text!r}, finish_reason={self.finish_reason!r})"


class LLM:
    """A model with its engine and its tokenizer.

    Args:
        model: a folder, a .gguf file or a bundle; or what accrt.serve.load has returned.
        options: those of accrt-serve for the engine and the model, by the same names.
    """

    __reduce_ex__ = not_copied

    def __init__(self, model: Any, *, progress: Any = None, **options: Any) -> None:
        _options.known(options, [_engine.OPTIONS, _load.OPTIONS], "LLM")
        engine_options = _options.checked(options, _engine.OPTIONS)  # before the model is loaded
        if isinstance(model, _load.Loaded):
            self._loaded = model
        else:
            self._loaded = _load.load(model, progress=progress, wanted=Wanted(engine_options), **{k: v for k, v in options.items() if k in _load.OPTIONS})
        self._engine = _engine.Engine(self._loaded.model, **engine_options)
        self._engine.owner = "LLM"
        self._hub = _engine.Hub(self._engine)
        self._adapters = Adapters(self._engine, self._loaded.layout)
        self._limits = Limits.of(self._loaded.model.info)
        self._loaded = self._loaded._replace(text=limited(self._loaded.text, self._limits.longest))
        self._watchers: Dict[asyncio.AbstractEventLoop, int] = {}

    @property
    def name(self) -> str:
        return self._loaded.name

    @property
    def engine(self) -> _engine.Engine:
        return self._engine

    # ---- adapters ----

    @property
    def adapters(self) -> List[str]:
        """The LoRA adapters that are loaded: what `adapter=` of a request may be."""
        return self._adapters.names()

    def load_adapter(self, name: str, folder: "str | os.PathLike[str]") -> None:
        """Loads a PEFT folder under a name, for `generate(..., adapter=name)`. Other requests go on
        meanwhile. The model needs places: LLM(..., adapters=4, max_rank=16). Raises
        accrt.models.Refused with all reasons if the adapter does not fit."""
        self._adapters.load(name, folder)

    def unload_adapter(self, name: str, timeout: float = 30.0) -> None:
        """Removes an adapter when the requests that use it have ended. NotReadyError: they have not
        ended after so many seconds, and the adapter stays."""
        self._adapters.unload(name, timeout)

    def close(self) -> None:
        """Ends the engine and all its requests."""
        self._engine.close()
        self._loaded.text.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.LLM {self.name}{', closed' if self._engine._pointer is None else ''}>"

    # ---- all at once ----

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]], **parameters: Any) -> Any:
        """Continues prompts: texts or lists of token ids. One prompt gives one Output, a list gives
        a list in the same order."""
        values = _checked(parameters, "stream")
        self._loaded.text.need_head()
        prompts = _listed(prompts)
        if _is_prompt(prompts):
            return self._run([_Prompt(prompts, self._loaded.text.prompt(prompts), grammar_of(values))], values)[0]
        if not isinstance(prompts, (list, tuple)):
            raise BadParameter("prompts", f"prompts is {shown(prompts)}, expected a text, a list of token ids, or a list of those", "invalid_type")
        several = [_listed(one) for one in prompts]
        return self._run([_Prompt(one, self._loaded.text.prompt(one, f"prompts[{i}]"), grammar_of(values)) for i, one in enumerate(several)], values)

    def chat(
        self, messages: Union[Sequence[Message], Sequence[Sequence[Message]]], *, tools: Any = None, tool_choice: Any = None,
        parallel_tool_calls: Any = None, chat_template_kwargs: Optional[Dict[str, Any]] = None, add_generation_prompt: Optional[bool] = None,
        continue_final_message: Optional[bool] = None, separate_reasoning: Optional[bool] = None, **parameters: Any,
    ) -> Any:  # fmt: skip
        """Answers a conversation, or each of several. `tools`, `tool_choice` and
        `parallel_tool_calls` are OpenAI's: the calls that the model writes are `output.tool_calls`,
        and `output.message` is the message to append to the conversation. `chat_template_kwargs`
        are variables for the model's chat template, as {"enable_thinking": False}. With
        `continue_final_message` the model goes on with the last message; with
        `add_generation_prompt=False` the template does not begin a new one. What the model reasons
        before it answers is `output.reasoning`, or part of the text with
        `separate_reasoning=False`."""
        asked = self._asked(tools, tool_choice, parallel_tool_calls)
        names, goes_on = _template_names(chat_template_kwargs, add_generation_prompt, continue_final_message)
        values, grammar, extra = self._with_tools(asked, _checked(parameters, "stream_chat"), names)
        if not isinstance(messages, (list, tuple)):
            raise BadParameter("messages", f"messages is {shown(messages)}, expected a list of messages, as [{{'role': 'user', 'content': 'Hello'}}], "
                               "or a list of such lists", "invalid_type")  # fmt: skip
        several = not messages or isinstance(messages[0], (list, tuple))
        prompts = [self._conversation(one, extra, goes_on, separate_reasoning, values, grammar, asked) for one in (messages if several else [messages])]
        outputs = self._run(prompts, values, asked)
        return outputs if several else outputs[0]

    def _conversation(
        self, messages: Any, extra: Dict[str, Any], goes_on: bool, separate: Optional[bool], values: Dict[str, Any], grammar: Optional[Grammar],
        asked: Optional[Asked],
    ) -> "_Prompt":  # fmt: skip
        """As the server has it. Changes `values` where marks of reasoning are special tokens."""
        text = self._loaded.text
        found = text.chat(messages, extra, goes_on=goes_on)
        given = {"separate_reasoning": separate}
        reasoning, values["skip_special_tokens"], grammar = find_reasoning(text, given, found, values["skip_special_tokens"], grammar, asked)
        return _Prompt(None, found.ids, grammar, reasoning)

    def _asked(self, tools: Any, tool_choice: Any, parallel_tool_calls: Any) -> Optional[Asked]:
        given = {"tools": tools, "tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls}
        return asked_of(given, self._loaded.text.tool_parser)

    def _with_tools(self, asked: Optional[Asked], values: Dict[str, Any], extra: Dict[str, Any]) -> Any:
        """The parameters, the grammar and what the template gets beside the messages, as the server
        has them."""
        grammar = grammar_of(values)
        values = {**values, "stop_token_ids": find_stops(self._loaded.text, values)}
        if asked is None:
            return values, grammar, extra
        grammar = asked.grammar(self._loaded.text.tokenizer.special, grammar)
        skip = asked.skip_special(values["skip_special_tokens"], self._loaded.text.tokenizer.special)
        return {**values, "skip_special_tokens": skip}, grammar, {**extra, "tools": asked.tools}

    def embed(self, prompts: Union[Prompt, Sequence[Prompt]], **parameters: Any) -> Any:
        """Embeddings of texts or lists of token ids, as numpy arrays of float32: one row for one
        prompt, a matrix for a list of them.

        Parameters are those of the server's /v1/embeddings: dimensions, pooling ("last" or "mean"),
        normalize, user, priority, timeout, cache_salt, adapter.
        """
        import numpy

        values = _embedding.parameters(parameters, self._loaded.text.pooling, self._loaded.model.info["embedding_size"])
        given = _listed(prompts)
        several, listed = _embedding.inputs("prompts", [_listed(one) for one in given] if isinstance(given, (list, tuple)) else given)
        pairs = [_Prompt(one, self._loaded.text.prompt(one, f"prompts[{i}]" if listed else "prompts")) for i, one in enumerate(several)]
        outputs = self._run(pairs, values)
        if any(output.embedding is None for output in outputs):
            raise errors.TimeoutError(f"the request's time was over after {values['timeout']:g} s", name="ACCRT_ERROR_TIMEOUT")
        rows = [numpy.frombuffer(output.embedding, "<f4") for output in outputs]
        return numpy.stack(rows) if listed else rows[0].copy()

    def _run(self, prompts: List["_Prompt"], values: Dict[str, Any], asked: Optional[Asked] = None) -> List[Output]:
        outputs = [Output(one.given, one.ids, values["n"], asked, one.reasoning) for one in prompts]
        grammars = [one.grammar for one in prompts]
        waiting, open_outputs = collections.deque(outputs), set(map(id, outputs))
        numbers: List[int] = []
        failures: List[_engine.Event] = []
        try:
            while open_outputs:
                self._submit_some(waiting, open_outputs, numbers, values, grammars, failures)
                self._hub.pump(0.05)
                if failures:
                    raise _failure(failures[0], any(grammars))
        finally:
            for number in numbers if open_outputs else ():
                self._hub.forget(number)
        return outputs

    def _submit_some(self, waiting: Deque[Output], open_outputs: set, numbers: List[int], values: Dict[str, Any], grammars: list, failures: list) -> None:
        """As many of the prompts as the engine's queue takes."""
        count = len(grammars)
        while waiting:
            output, index = waiting[0], count - len(waiting)
            kind = "prompt" if output.prompt is not None else "messages"
            request = Request(output.prompt_token_ids, values, _engine.now_ns(), self._engine.constraint(grammars[index]))
            try:
                request.check(self._limits, kind if count == 1 else f"{'prompts' if kind == 'prompt' else kind}[{index}]")
                numbers.append(self._hub.submit(request, _collector(output, open_outputs, failures)))
            except Error as error:
                if error.status == _ffi.ACCRT_ERROR_NOT_READY and len(open_outputs) > len(waiting):
                    return  # some of ours are under way: there will be room
                raise
            waiting.popleft()

    # ---- piece by piece ----

    def stream(self, prompt: Prompt, **parameters: Any) -> "Stream":
        """Continues a prompt piece by piece: `async for piece in llm.stream(...)`, or `for`."""
        values = _checked(parameters)
        self._loaded.text.need_head()
        return Stream(self, _Prompt(prompt, self._loaded.text.prompt(_listed(prompt)), grammar_of(values)), values)

    def stream_chat(
        self, messages: Sequence[Message], *, tools: Any = None, tool_choice: Any = None, parallel_tool_calls: Any = None,
        chat_template_kwargs: Optional[Dict[str, Any]] = None, add_generation_prompt: Optional[bool] = None,
        continue_final_message: Optional[bool] = None, separate_reasoning: Optional[bool] = None, **parameters: Any,
    ) -> "Stream":  # fmt: skip
        """The same for a conversation. Calls of tools come in pieces, as `piece.tool_calls`."""
        asked = self._asked(tools, tool_choice, parallel_tool_calls)
        names, goes_on = _template_names(chat_template_kwargs, add_generation_prompt, continue_final_message)
        values, grammar, extra = self._with_tools(asked, _checked(parameters), names)
        return Stream(self, self._conversation(messages, extra, goes_on, separate_reasoning, values, grammar, asked), values, asked)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        count = self._watchers.get(loop, 0)
        if count == 0:
            loop.add_reader(self._engine.fileno(), self._hub.take_if_free)
        self._watchers[loop] = count + 1

    def _unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watchers[loop] -= 1
        if self._watchers[loop] == 0:
            del self._watchers[loop]
            loop.remove_reader(self._engine.fileno())


def _checked(parameters: Dict[str, Any], streaming: Optional[str] = None) -> Dict[str, Any]:
    if "stream" in parameters:
        more = f": for pieces as they come, `for piece in llm.{streaming}(...)`" if streaming else ": this gives pieces as they come already"
        raise BadParameter("stream", f"stream is no parameter here{more}", "unknown_parameter")
    return checked(parameters)


def _template_names(given: Any, add: Optional[bool], goes_on: Optional[bool]) -> Tuple[Dict[str, Any], bool]:
    """What the template gets beside messages and tools; and whether the last message goes on."""
    names = template_names(given)
    add, goes_on = generation_prompt({"add_generation_prompt": add, "continue_final_message": goes_on})
    return names if add is None else {**names, "add_generation_prompt": add}, goes_on


def _listed(given: Any) -> Any:
    """An array of numpy or torch as the lists that it stands for."""
    return given.tolist() if hasattr(given, "tolist") and hasattr(given, "shape") else given


class _Prompt(NamedTuple):
    """What one request of the engine begins with."""

    given: Optional[Prompt]
    ids: Sequence[int]
    grammar: Optional[Grammar] = None
    reasoning: Optional[Reasoning] = None


def _parsers(asked: Optional[Asked], reasoning: Optional[Reasoning], n: int) -> List[Calls]:
    """One for each sequence; none where there are no tools and no reasoning."""
    if asked is None and reasoning is None:
        return []
    form, one, texts = (asked.form, asked.one, asked.text_parameters) if asked is not None else (None, False, None)
    return [Calls(form, one, reasoning.number if reasoning is not None else 0, texts) for _ in range(n)]


def _called(event: _engine.Event, calls: Optional[Calls]) -> News:
    """The event's text without calls of tools and reasoning, and pieces of those."""
    if calls is None or event.of_prompt:
        return News(event.text, [], "")
    return calls.push(event.text, event.finish_reason is not None)


def _reason(event: _engine.Event, called: bool) -> Optional[str]:
    return "tool_calls" if called and event.finish_reason == "stop" else event.finish_reason


def _failure(event: _engine.Event, constrained: bool) -> Error:
    name = lib.accrt_status_name(event.status).decode()
    why = f"the engine failed at the request: {lib.accrt_status_text(event.status).decode()}"
    if event.status == _ffi.ACCRT_ERROR_KERNEL:
        why = ("the model failed at the request: its results are not finite numbers (its weights may have NaN or infinity), "
               "or a kernel returned an error")  # fmt: skip
    if event.status == _ffi.ACCRT_ERROR_OUT_OF_RANGE and constrained:
        why = "the grammar became too complex for its text"
    return errors.class_of(event.status)(f"{why} ({name})", name=name)


def _is_prompt(given: Any) -> bool:
    return isinstance(given, str) or (isinstance(given, (list, tuple)) and len(given) > 0 and isinstance(given[0], numbers.Integral))


def _scores(event: _engine.Event) -> list:
    """Log probabilities of a prompt: the first token has none."""
    return [None, *(event.logprobs or [])[1:]]


def _collector(output: Output, open_outputs: set, failures: list) -> Any:
    def take(event: _engine.Event) -> None:
        if event.of_prompt:
            output.prompt_logprobs = _scores(event)
            return
        output.completions[event.sequence].add(event, output._calls[event.sequence] if output._calls else None)
        output.embedding = event.embedding
        output.cached_tokens = max(output.cached_tokens, event.cached_tokens)
        if event.finish_reason == "failed":
            failures.append(event)
        if event.last:
            open_outputs.discard(id(output))

    return take


class Stream:
    """Pieces of one request as they come. The request ends when the loop is left or the object is
    collected."""

    def __init__(self, llm: LLM, prompt: _Prompt, values: Dict[str, Any], asked: Optional[Asked] = None) -> None:
        self._llm, self._pieces, self._ended = llm, collections.deque(), False
        self._wake: Any = None
        self._number: Optional[int] = None
        self._begun = False
        self._request = Request(prompt.ids, values, _engine.now_ns(), llm.engine.constraint(prompt.grammar))
        self._calls = _parsers(asked, prompt.reasoning, values["n"])
        self._called: Set[int] = set()  # sequences with calls
        self._request.check(llm._limits)

    def _take(self, event: _engine.Event) -> None:
        self._pieces.append(event)
        if self._wake is None:
            return
        try:
            self._wake()
        except RuntimeError:  # its loop is closed: the request ends, and other requests go on
            self._wake = None
            if not event.last:
                self._llm.engine.cancel(event.request)

    def _begin(self) -> None:
        """A stream is for one loop: another one would take the first one's pieces."""
        if self._begun:
            raise errors.InvalidStateError("this stream has been looped over: llm.stream(...) makes another one")
        self._begun = True
        self._number = self._llm._hub.submit(self._request, self._take)

    def _next(self) -> Optional[Piece]:
        event = self._pieces.popleft()
        if event.finish_reason == "failed":
            raise _failure(event, bool(self._request.struct.constraint))
        self._ended = event.last
        news = _called(event, self._calls[event.sequence] if self._calls else None)
        if news.calls:
            self._called.add(event.sequence)
        return Piece(event, news, event.sequence in self._called) if any(news) or event.tokens or event.finish_reason else None

    def _end(self) -> None:
        if self._number is not None and not self._ended:
            self._llm._hub.forget(self._number)
        self._ended = True

    def __iter__(self) -> Iterator[Piece]:
        hub = self._llm._hub
        self._begin()
        try:
            while not self._ended:
                if not self._pieces:
                    hub.pump(0.05)
                    continue
                piece = self._next()
                if piece is not None:
                    yield piece
        finally:
            self._end()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        import asyncio  # takes a third of all imports of a start that may not need it

        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        if not self._begun:
            self._wake = lambda: loop.call_soon_threadsafe(ready.set)
        self._begin()
        self._llm._watch(loop)
        try:
            while not self._ended:
                if not self._pieces:
                    await ready.wait()
                    ready.clear()
                    continue
                piece = self._next()
                if piece is not None:
                    yield piece
        finally:
            self._llm._unwatch(loop)
            self._end()


__all__ = ["BadParameter", "Completion", "LLM", "Output", "Piece", "Stream"]
