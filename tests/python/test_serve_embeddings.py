"""Embeddings: over HTTP, by the openai client and in process; of the simulated model, and of small
models beside float64."""

from __future__ import annotations

import asyncio
import base64
import json
import socket

import pytest
import serve_http
from serve_http import Answer, post, until

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

serve_http.need_server()

np = pytest.importorskip("numpy")
tiny = pytest.importorskip("tiny_models")

import accrt  # noqa: E402
import kernel_harness as kh  # noqa: E402
from accrt import serve  # noqa: E402
from accrt.serve import embedding  # noqa: E402
from accrt.serve.parameters import BadParameter  # noqa: E402

EMBEDDINGS = "/v1/embeddings"
SIZE = 64


@pytest.fixture(scope="module")
def server():
    with serve_http.served() as one:
        yield one


@pytest.fixture(scope="module")
def simulated():
    with accrt.LLM(serve.simulated()) as one:
        yield one


def ask(server, body):
    return Answer(server.raw(post(EMBEDDINGS, body)))


def test_texts_and_token_ids(server, simulated):
    answer = ask(server, {"model": "sim", "input": "hello"})
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"object", "data", "model", "usage"}
    assert (answer.json["object"], answer.json["model"]) == ("list", "sim")
    assert answer.json["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    (one,) = answer.json["data"]
    assert (one["object"], one["index"], len(one["embedding"])) == ("embedding", 0, SIZE)
    assert abs(np.linalg.norm(one["embedding"]) - 1) < 1e-6
    expected = simulated.embed("hello")
    # the numbers are the floats, to the bit
    assert np.array_equal(np.array(one["embedding"], "f4"), expected)
    for given in (["hello"], list(b"hello"), [list(b"hello")]):
        assert ask(server, {"input": given}).json["data"] == [one]
    many = ask(server, {"input": ["hello", "a", "hello"]}).json
    assert [entry["index"] for entry in many["data"]] == [0, 1, 2] and many["usage"]["prompt_tokens"] == 11
    assert many["data"][0]["embedding"] == many["data"][2]["embedding"] == one["embedding"] != many["data"][1]["embedding"]


def test_base64_is_the_same_floats(server):
    for size in range(1, 12):  # each rest of the groups
        numbers = ask(server, {"input": "hello", "dimensions": size}).json["data"][0]["embedding"]
        coded = ask(server, {"input": "hello", "dimensions": size, "encoding_format": "base64"}).json["data"][0]["embedding"]
        found = np.frombuffer(base64.b64decode(coded, validate=True), "<f4")
        assert np.array_equal(found, np.array(numbers, "f4")) and len(found) == size
        assert abs(np.linalg.norm(found) - 1) < 1e-6


def test_dimensions_are_the_first_ones_normalized_anew(simulated):
    whole, raw = simulated.embed("text"), simulated.embed("text", normalize=False)
    np.testing.assert_allclose(raw / np.linalg.norm(raw), whole, atol=1e-6)
    few = simulated.embed("text", dimensions=7)
    np.testing.assert_allclose(few, raw[:7] / np.linalg.norm(raw[:7]), atol=1e-6)
    assert np.array_equal(simulated.embed("text", dimensions=7, normalize=False), raw[:7])


@pytest.mark.parametrize(("body", "parameter", "message"), [
    ({}, "input", "input is missing"),
    ({"input": ""}, "input", "has no tokens"),
    ({"input": []}, "input", "empty list"),
    ({"input": ["a", ""]}, "input[1]", "has no tokens"),
    ({"input": ["a", 3]}, "input", "expected a string or a list of token ids"),
    ({"input": {"text": "a"}}, "input", "expected a string or a list of token ids"),
    ({"input": [1, 99999]}, "input", "input[1] is 99999"),
    ({"input": "x" * 4097}, "input", "has 4097 tokens, and the model takes 4096"),
    ({"input": "a", "dimensions": 65}, "dimensions", "dimensions is 65, and the model's embeddings have 64"),
    ({"input": "a", "dimensions": 0}, "dimensions", "expected a number"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format", "expected float or base64"),
    ({"input": "a", "pooling": "cls"}, "pooling", "expected one of last, mean"),
    ({"input": "a", "temperature": 1}, "temperature", "is no parameter of embeddings"),
    ({"input": "a", "dimension": 3}, "dimension", "did you mean dimensions?"),
    ({"input": "a", "stream": True}, "stream", "is no parameter"),
])  # fmt: skip
def test_bad_parameters_are_named(server, body, parameter, message):
    answer = ask(server, body)
    assert answer.status == 400 and answer.error["param"] == parameter and message in answer.error["message"], answer.error


def test_another_model_is_not_found(server):
    assert ask(server, {"input": "a", "model": "other"}).status == 404


def test_a_model_without_embeddings_says_so():
    with serve_http.served(model={"embedding_size": 0}) as server:
        answer = ask(server, {"input": "a"})
        assert answer.status == 400 and answer.error["code"] == "unsupported" and "gives no embeddings" in answer.error["message"]


def test_the_longest_text_needs_no_room_for_a_new_token(server):
    assert ask(server, {"input": "x" * 4096}).json["usage"]["prompt_tokens"] == 4096


def test_beside_generation_in_chunks_with_little_memory(simulated):
    """Bit for bit the same as alone."""
    texts = [f"{i % 7}" * (1 + 37 * i % 300) for i in range(60)]
    expected = {pooling: simulated.embed(texts, pooling=pooling) for pooling in embedding.POOLINGS}
    # so that all of it meets
    model = {"page_count": 60, "max_rows": 9, "max_tokens": 40, "step_ns": 300_000}
    with serve_http.served(model=model, engine={"max_chunk_tokens": 13}) as small:
        for _ in range(20):  # on a busy machine they may miss each other
            clients = [small.connect() for _ in range(6)]
            for i, client in enumerate(clients):
                client.sendall(post("/v1/completions", {"prompt": f"{i}" * 40, "max_tokens": 200}))
            for pooling, wanted in expected.items():
                found = ask(small, {"input": texts, "pooling": pooling}).json["data"]
                assert np.array_equal(np.array([one["embedding"] for one in found], "f4"), wanted)
            for client in clients:
                assert Answer(serve_http.read_all(client)).status == 200
                client.close()
            stats = small.engine.stats()
            if stats["preemptions"] > 0:
                break
        assert stats["preemptions"] > 0 and stats["cached_tokens"] > 0


def test_a_client_that_leaves_ends_its_request():
    with serve_http.served(model={"step_ns": 20_000_000}) as slow:
        with slow.connect() as client:
            client.sendall(post(EMBEDDINGS, {"input": ["x" * 3000] * 50, "pooling": "mean"}))
            assert until(slow.submitted)
        assert until(lambda: not slow.busy())


def test_inputs_beyond_the_queue_are_refused_before_they_become_tokens(monkeypatch):
    """100,000 of them took ten seconds of a worker."""
    with serve_http.served(engine={"max_queued": 4}) as small:
        monkeypatch.setattr(type(small.server._text), "prompt", None)
        answer = serve_http.Answer(small.raw(serve_http.post("/v1/embeddings", {"input": ["a"] * 5})))
        assert answer.status == 400 and "input has 5 prompts, and the queue takes 4" in answer.error["message"]



def test_more_texts_than_the_queue_takes():
    with serve_http.served(engine={"max_queued": 4}) as small:
        answer = ask(small, {"input": ["x"] * 5})
        assert answer.status == 400 and "input has 5 prompts, and the queue takes 4" in answer.error["message"]
    with accrt.LLM(serve.simulated(), max_queued=4, max_running=2) as llm:  # which waits
        assert llm.embed(["x"] * 50).shape == (50, SIZE)


def test_in_process(simulated):
    one, many = simulated.embed("hello"), simulated.embed(["hello", list(b"world")])
    assert one.shape == (SIZE,) and many.shape == (2, SIZE) and one.dtype == np.float32
    assert np.array_equal(many[0], one) and np.array_equal(simulated.embed(np.frombuffer(b"world", np.uint8)), many[1])
    assert np.array_equal(simulated.embed([np.array([104, 105]), "hi"])[0], simulated.embed("hi"))
    for given, message in ((3, "expected a string"), ([], "empty list"), ("", "no tokens")):
        with pytest.raises(BadParameter, match=message):
            simulated.embed(given)
    with pytest.raises(BadParameter, match="did you mean dimensions"):
        simulated.embed("x", dimension=3)


# ---- the folder's own way ----


def modules(*kinds):
    return json.dumps([{"idx": i, "name": str(i), "path": "", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]).encode()


def pooling(**modes):
    return json.dumps({"word_embedding_dimension": 64, **{f"pooling_mode_{name}": value for name, value in modes.items()}}).encode()


@pytest.mark.parametrize(("files", "expected"), [
    ({}, ("last", True, "")),
    ({"modules.json": modules("Transformer", "Pooling", "Normalize"), "1_Pooling/config.json": pooling(lasttoken=True, mean_tokens=False)}, ("last", True, "")),
    ({"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": pooling(mean_tokens=True)}, ("mean", False, "")),
    ({"1_Pooling/config.json": b'{"pooling_mode": "mean"}'}, ("mean", True, "")),
    ({"1_Pooling/config.json": pooling(cls_token=True)}, ("last", True, "1_Pooling/config.json asks for pooling_mode_cls_token")),
    ({"1_Pooling/config.json": pooling(mean_tokens=True, lasttoken=True)}, ("last", True, "1_Pooling/config.json asks for pooling_mode_mean_tokens, pooling_mode_lasttoken")),
    ({"modules.json": modules("Transformer", "Pooling", "Dense")}, ("last", False, "modules.json has a module Dense")),
])  # fmt: skip
def test_what_the_folder_says(files, expected):
    found = embedding.pooling_of(files)
    assert tuple(found) == expected
    if found.reason:
        with pytest.raises(BadParameter, match="not done here"):
            embedding.parameters({}, found, 64)
        assert embedding.parameters({"pooling": "mean"}, found, 64)["embed"].kind == embedding.POOLINGS["mean"]


# ---- models ----


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Models of one form have one bundle."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", kh.other_cache(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


TEXTS = ["hello", "the other one, with more words in it than a page has tokens", "x"]


def with_pooling(folder):
    (folder / "modules.json").write_bytes(modules("Transformer", "Pooling", "Normalize"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_bytes(pooling(mean_tokens=True))
    return folder


def expected_rows(config, weights, ids, mode):
    hidden = [tiny.reference(config, weights, np.array(row))[1] for row in ids]
    rows = np.stack([row.mean(0) if mode == "mean" else row[-1] for row in hidden])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_beside_float64(tmp_path, cache, name):
    pytest.importorskip("tokenizers", reason="the package tokenizers is not here")
    config = tiny.CONFIGS[name]
    weights = tiny.tensors(config, 11, gain=1.0)
    folder = with_pooling(tiny.write_folder(tmp_path / "m", config, weights))
    loaded = serve.load(folder, device="host", kv_bytes=1 << 20, max_rows=4)
    with accrt.LLM(loaded, max_chunk_tokens=9) as llm:
        ids = [loaded.text.tokenizer.encode(text) for text in TEXTS]
        generated = llm.generate(TEXTS, max_tokens=5, temperature=0, ignore_eos=True)
        for mode in embedding.POOLINGS:
            wanted = expected_rows(config, weights, ids, mode)
            np.testing.assert_allclose(llm.embed(TEXTS, pooling=mode), wanted, rtol=0, atol=2e-4)
        # the folder asks for the mean, the last of them
        np.testing.assert_allclose(llm.embed(TEXTS), wanted, rtol=0, atol=2e-4)
        again = llm.generate(TEXTS, max_tokens=5, temperature=0, ignore_eos=True)
        assert [one.token_ids for one in again] == [one.token_ids for one in generated]


def test_alone_and_in_company_are_the_same_bits(tmp_path, cache):
    pytest.importorskip("tokenizers", reason="the package tokenizers is not here")
    config = tiny.CONFIGS["llama"]
    folder = tiny.write_folder(tmp_path / "m", config, tiny.tensors(config, 12, gain=1.0))
    with_pooling(folder)
    texts = [text * (1 + i) for i in range(3) for text in TEXTS]
    with accrt.LLM(folder, device="host", max_length=256) as llm:
        alone = [llm.embed(text, pooling="last") for text in texts]
        means = [llm.embed(text, pooling="mean") for text in texts]
    with accrt.LLM(folder, device="host", max_length=256, kv_bytes=1 << 18, max_rows=4, max_step_tokens=16, max_chunk_tokens=5) as llm:
        streams = [iter(llm.stream(text, max_tokens=60, temperature=0, ignore_eos=True)) for text in TEXTS]
        for stream in streams:
            next(stream)
        assert all(map(np.array_equal, llm.embed(texts, pooling="last"), alone)) and all(map(np.array_equal, llm.embed(texts, pooling="mean"), means))
        for stream in streams:
            list(stream)


def test_a_model_without_a_head(tmp_path, cache):
    """As e5-mistral is published: architectures, names of tensors, no head. It embeds, and says
    what it cannot do."""
    pytest.importorskip("tokenizers", reason="the package tokenizers is not here")
    config = {**tiny.CONFIGS["mistral"], "architectures": ["MistralModel"]}
    weights = tiny.tensors(config, 13, gain=1.0)
    bare = {name.replace("model.", "", 1): array for name, array in weights.items() if not name.startswith("lm_head")}
    folder = tiny.write_folder(tmp_path / "m", config, bare)
    (folder / "modules.json").write_bytes(modules("Transformer", "Pooling", "Normalize"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_bytes(pooling(lasttoken=True))
    loaded = serve.load(folder, device="host", kv_bytes=1 << 20, max_rows=4)
    with accrt.LLM(loaded) as llm:
        ids = [loaded.text.tokenizer.encode(text) for text in TEXTS]
        np.testing.assert_allclose(llm.embed(TEXTS), expected_rows(config, weights, ids, "last"), rtol=0, atol=2e-4)
        for wrong in (lambda: llm.generate("x"), lambda: llm.stream("x"), lambda: llm.chat([{"role": "user", "content": "x"}])):
            with pytest.raises(BadParameter, match="this model has no head"):
                wrong()
    with serve.Engine(loaded.model) as engine, serve.Server(engine, loaded.text, name="m", port=0) as server:
        port = server.port
        for path, body in (("completions", {"prompt": "x"}), ("chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                client.sendall(post(f"/v1/{path}", body))
                answer = Answer(serve_http.read_all(client))
            assert answer.status == 400 and "no head" in answer.error["message"], answer.body


@pytest.mark.parametrize(("kind", "mode"), [(1, "mean"), (3, "last"), (None, "last")])
def test_a_gguf_file_says_its_pooling(tmp_path, cache, kind, mode):
    """And that a text ends with a token, whose row is the last one then."""
    pytest.importorskip("tokenizers", reason="the package tokenizers is not here")
    config = tiny.CONFIGS["qwen3"]
    weights = tiny.tensors(config, 14, gain=1.0)
    said = {**tiny.gguf_metadata(config), "tokenizer.ggml.add_eos_token": True, **({} if kind is None else {"qwen3.pooling_type": kind})}
    tiny.write_gguf(tmp_path / "m.gguf", said, tiny.gguf_tensors(config, weights))
    for _start in range(2):  # the second time from the cache
        loaded = serve.load(tmp_path / "m.gguf", device="host", kv_bytes=1 << 20, max_rows=4)
        assert loaded.text.pooling == embedding.Pooling(mode)
        with accrt.LLM(loaded) as llm:
            ids = [loaded.text.tokenizer.encode(text) for text in TEXTS]
            assert all(row[-1] == config["eos_token_id"] for row in ids)
            np.testing.assert_allclose(llm.embed(TEXTS), expected_rows(config, weights, ids, mode), rtol=0, atol=2e-4)


# ---- the official client ----


def test_the_openai_client():
    openai = pytest.importorskip("openai", reason="the openai client is not here (./dev check openai has it)")
    with serve_http.served(check_descriptors=False) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            # it asks for base64 and takes it apart
            found = client.embeddings.create(model="sim", input=["hello", "world"])
            numbers = client.embeddings.create(model="sim", input=[list(b"hello"), list(b"world")], encoding_format="float")
            assert np.array_equal(*(np.array([one.embedding for one in made.data], "f4") for made in (found, numbers))) and found.model == "sim"
            assert found.usage.prompt_tokens == found.usage.total_tokens == 10 and [one.index for one in found.data] == [0, 1]
            assert len(client.embeddings.create(model="sim", input="x", dimensions=8, user="me").data[0].embedding) == 8
            with pytest.raises(openai.BadRequestError, match="dimensions is 100") as caught:
                client.embeddings.create(model="sim", input="x", dimensions=100)
            assert caught.value.param == "dimensions"

        async def several():
            async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
                made = await asyncio.gather(*[client.embeddings.create(model="sim", input=word) for word in ("hello", "world") * 10])
                return [one.data[0].embedding for one in made]

        assert asyncio.run(several()) == [one.embedding for one in found.data] * 10
