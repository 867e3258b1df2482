"""The engine over step programs: what many requests get together is what each gets alone, and what
the reference in numpy says."""

import ctypes
import json
import os
import random
import subprocess
import sys

import kernel_harness as kh
import numpy as np
import pytest
import tiny_models as tiny

import accrt
from accrt import _ffi, models
from accrt._library import check, lib, struct

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

LLAMA = tiny.CONFIGS["llama"]


@pytest.fixture(scope="module")
def weights():
    return tiny.tensors(LLAMA, 7, gain=1.0)


@pytest.fixture(scope="module")
def opened(tmp_path_factory, weights):
    folder = tiny.write_folder(tmp_path_factory.mktemp("serve") / "Tiny-1", LLAMA, weights)
    options = models.Options(page_size=8, token_buckets=(1, 4, 16, 64), row_buckets=(1, 8), sample_buckets=(1, 8), change_buckets=(4, 16), edit_buckets=(1, 40, 640))
    return models.open(folder, targets=kh.host_targets()[-1:], options=options, output=folder.parent / "tiny.accx")


class Engine:
    """The C engine, by hand."""

    def __init__(self, opened, options=None, **program_options):
        self.model, self.engine, self.outputs = _ffi.accrt_serve_model_p(), _ffi.accrt_serve_engine_p(), {}
        if opened is None:
            given = struct(_ffi.accrt_serve_simulation, eos=-1)
            check(lib.accrt_serve_model_create_simulated(ctypes.byref(given), ctypes.byref(self.model)))
        else:
            self.open_program(opened, program_options)
        given = struct(_ffi.accrt_serve_options, **(options or {}))
        check(lib.accrt_serve_engine_create(self.model, ctypes.byref(given), ctypes.byref(self.engine)))

    def open_program(self, opened, program_options):
        bundle = accrt.Bundle(opened.bundle)
        self.program = bundle.program(weights=opened.sources())
        device = _ffi.accrt_device_p()
        check(lib.accrt_instance_device_by_name(bundle.instance.handle, b"host", ctypes.byref(device)))
        given = struct(_ffi.accrt_serve_program_options, **program_options)
        self.memory = struct(_ffi.accrt_serve_memory)
        check(lib.accrt_serve_program_memory(device, self.program.handle, ctypes.byref(given), ctypes.byref(self.memory)))
        check(lib.accrt_serve_model_open_program(device, self.program.handle, ctypes.byref(given), ctypes.byref(self.model)))

    def submit(self, prompt, new_tokens, **values):
        request = struct(_ffi.accrt_serve_request, max_new_tokens=new_tokens, **values)
        request.prompt, request.prompt_count = (ctypes.c_int32 * len(prompt))(*prompt), len(prompt)
        number = ctypes.c_uint64()
        check(lib.accrt_serve_engine_submit(self.engine, ctypes.byref(request), ctypes.byref(number)))
        self.outputs[number.value] = {}
        return number.value

    def run(self):
        events, count = (_ffi.accrt_serve_event * 16)(), ctypes.c_uint32()
        while lib.accrt_serve_engine_step(self.engine) == 0:
            while lib.accrt_serve_engine_poll(self.engine, events, ctypes.sizeof(events[0]), 16, ctypes.byref(count)) == 0:
                for event in events[: count.value]:
                    assert event.status == 0, event.status
                    if event.kind == _ffi.ACCRT_SERVE_EVENT_PROMPT:
                        assert not self.outputs[event.request]  # before all tokens, and once
                        self.outputs[event.request]["prompt"] = scores(event)
                        continue
                    output = self.outputs[event.request].setdefault(event.sequence, {"tokens": [], "logprobs": [], "text": b""})
                    output["tokens"] += event.tokens[: event.token_count]
                    output["text"] += ctypes.string_at(event.text, event.text_size_bytes)
                    if event.logprobs:
                        output["logprobs"].append([(p.token, p.logprob) for p in event.logprobs[: 1 + event.top_count]])
                    output["reason"] = event.finish_reason

    def stats(self):
        stats = struct(_ffi.accrt_serve_stats)
        check(lib.accrt_serve_engine_stats(self.engine, ctypes.byref(stats)))
        return stats

    def close(self):
        lib.accrt_serve_engine_release(self.engine)
        lib.accrt_serve_model_release(self.model)


def scores(event):
    """For each token of a prompt: its own (token, log probability) and those of the
    alternatives."""
    width = 1 + event.top_count
    flat = [(p.token, p.logprob) for p in event.logprobs[: width * event.token_count]]
    assert [flat[i * width][0] for i in range(event.token_count)] == event.tokens[: event.token_count]
    return [flat[i * width : (i + 1) * width] for i in range(event.token_count)]


def generate(opened, requests, options=None, **program_options):
    """The first sequences' outputs of requests (prompt, new tokens, values), and the engine's
    figures."""
    engine = Engine(opened, options, **program_options)
    numbers = [engine.submit(prompt, count, **values) for prompt, count, values in requests]
    engine.run()
    stats = engine.stats()
    engine.close()
    return [engine.outputs[number] for number in numbers], stats


def random_requests(rng, count):
    common = [rng.randrange(256) for _ in range(40)]
    for i in range(count):
        prompt = common[: rng.choice([0, 17, 40])] + [rng.randrange(256) for _ in range(rng.randint(1, 30))]
        values = {"flags": _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_IGNORE_EOS, "seed": i}
        if i % 2:
            values.update(temperature=0.8, top_k=rng.choice([0, 20]), top_p=rng.choice([0.0, 0.9]), min_p=rng.choice([0.0, 0.05]))
        if i % 3 == 0:
            values.update(repetition_penalty=1.2, frequency_penalty=0.3)
        yield prompt, rng.randint(5, 40), values


def test_a_program_and_a_device_belong_together(opened):
    """Another device, of this instance or of another one, is refused before anything is made: every
    step of such a model was NOT_READY."""
    here, there = (accrt.Instance(trust="all", options={"host.devices": "2"}) for _ in range(2))
    with accrt.Bundle(opened.bundle, instance=here) as bundle:
        program = bundle.program(device=here.device("host:0"), weights=[accrt.Weights(path, here) for path in opened.weights])
    given, memory = struct(_ffi.accrt_serve_program_options, pages=8), struct(_ffi.accrt_serve_memory)
    for device, wanted in ((here.device("host:1"), "the device is host:1, the program's is host:0"),
                           (there.device("host:0"), "the device is host:0 of another instance, the program's is host:0"),
                           (there.device("host:1"), "the device is host:1, the program's is host:0")):  # fmt: skip
        model = _ffi.accrt_serve_model_p()
        for function, out in ((lib.accrt_serve_program_memory, memory), (lib.accrt_serve_model_open_program, model)):
            with pytest.raises(accrt.InvalidArgumentError, match=wanted) as caught:
                check(function(device.handle, program.handle, ctypes.byref(given), ctypes.byref(out)))
            assert caught.value.operation == function.__name__  # not what it called
        assert not model
    check(lib.accrt_serve_program_memory(here.device("host:0").handle, program.handle, ctypes.byref(given), ctypes.byref(memory)))


def test_greedy_tokens_are_those_of_the_reference(opened, weights):
    prompt = [72, 101, 108, 108, 111]
    (output,), _ = generate(opened, [(prompt, 30, {"flags": _ffi.ACCRT_SERVE_IGNORE_EOS | _ffi.ACCRT_SERVE_LOGPROBS, "top_logprobs": 3})])
    tokens = output[0]["tokens"]
    logits = tiny.reference(LLAMA, weights, prompt + tokens)[0][len(prompt) - 1 : -1]
    assert len(tokens) == 30 and len(output[0]["logprobs"]) == 30
    for token, row, logprobs in zip(tokens, logits, output[0]["logprobs"]):
        expected = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert row[token] >= row.max() - 1e-3
        assert logprobs[0][0] == token and abs(logprobs[0][1] - expected[token]) < 1e-3
        assert np.allclose([p for _, p in logprobs[1:]], np.sort(expected)[::-1][:3], atol=1e-3)


@pytest.mark.parametrize("pages", [20, 200])
def test_many_requests_get_what_each_gets_alone(opened, pages):
    """With 20 pages they are preempted, too."""
    rng = random.Random(3)
    requests = list(random_requests(rng, 16))
    together, stats = generate(opened, requests, {"max_chunk_tokens": 24}, pages=pages)
    assert stats.step_failures == 0 and (stats.preemptions > 0) == (pages == 20) and stats.cached_tokens > 0
    assert stats.pages_free + stats.pages_cached == stats.pages == pages
    for request, output in zip(requests, together):
        (alone,), _ = generate(opened, [request], {"flags": _ffi.ACCRT_SERVE_ENGINE_NO_CACHE})
        assert output[0]["tokens"] == alone[0]["tokens"] and output[0]["text"] == alone[0]["text"]


def test_biases_bans_and_sequences(opened):
    prompt = [1, 2, 3]
    bias = (_ffi.accrt_serve_bias * 1)(_ffi.accrt_serve_bias(65, 1000.0))
    (forced, several), _ = generate(opened, [
        (prompt, 5, {"biases": bias, "bias_count": 1, "flags": _ffi.ACCRT_SERVE_IGNORE_EOS}),
        (prompt, 12, {"n": 3, "temperature": 1.0, "flags": _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_IGNORE_EOS, "seed": 9}),
    ])  # fmt: skip
    assert forced[0]["tokens"] == [65] * 5 and forced[0]["text"] == b"AAAAA"
    assert len({tuple(several[i]["tokens"]) for i in range(3)}) == 3


class Remainder:
    """A constraint in Python: token k has the remainder k by 3."""

    def __init__(self):
        self.counts, self.handle = {}, _ffi.accrt_serve_constraint_p()
        fields = dict(_ffi.accrt_serve_constraint_functions._fields_)
        kept = {name: fields[name](getattr(self, name)) for name in ("start", "mask", "advance", "stop")}
        self.functions = struct(_ffi.accrt_serve_constraint_functions, **kept)
        check(lib.accrt_serve_constraint_create(ctypes.byref(self.functions), ctypes.byref(self.handle)))

    def start(self, _, out):
        out[0] = len(self.counts) + 1
        self.counts[len(self.counts) + 1] = 0
        return 0

    def mask(self, state, bits, words, may_end):
        for token in range(self.counts[state] % 3, words * 32, 3):
            bits[token // 32] |= 1 << token % 32
        return 0

    def advance(self, state, token, ended):
        assert token % 3 == self.counts[state] % 3
        self.counts[state] += 1
        return 0

    def stop(self, state):
        self.counts[state] = -1


@pytest.mark.parametrize("pages", [24, 200])
def test_constrained_requests_among_others(opened, pages):
    """A constraint is what bans of all other tokens would be, whatever else is in the step."""
    constraint = Remainder()
    rng = random.Random(5)
    requests = list(random_requests(rng, 12))
    for prompt, _, values in requests[::2]:
        values["constraint"] = constraint.handle
    together, stats = generate(opened, requests, {"max_chunk_tokens": 24}, pages=pages)
    assert stats.step_failures == 0 and (stats.preemptions > 0) == (pages == 24)
    for i, (request, output) in enumerate(zip(requests, together)):
        (alone,), _ = generate(opened, [request])
        assert output[0]["tokens"] == alone[0]["tokens"] and len(output[0]["tokens"]) == request[1]
        assert i % 2 or all(token % 3 == k % 3 for k, token in enumerate(output[0]["tokens"]))
    assert set(constraint.counts.values()) == {-1}
    lib.accrt_serve_constraint_release(constraint.handle)


def test_a_constraint_is_what_bans_of_other_tokens_are(opened):
    constraint = Remainder()
    prompt, flags = [5, 6, 7], _ffi.ACCRT_SERVE_IGNORE_EOS | _ffi.ACCRT_SERVE_SEED
    values = {"flags": flags, "seed": 3, "temperature": 1.0, "top_p": 0.9}
    (masked,), _ = generate(opened, [(prompt, 9, {**values, "constraint": constraint.handle})])
    for k, token in enumerate(masked[0]["tokens"]):
        others = [t for t in range(LLAMA["vocab_size"]) if t % 3 != k % 3]
        biases = (_ffi.accrt_serve_bias * len(others))(*[(t, float("-inf")) for t in others])
        (banned,), _ = generate(opened, [(prompt + masked[0]["tokens"][:k], 1, {**values, "biases": biases, "bias_count": len(others)})])
        assert banned[0]["tokens"] == [token]
    lib.accrt_serve_constraint_release(constraint.handle)


def test_memory_is_said_before_it_is_taken(opened):
    engine = Engine(opened, max_rows=4, max_length=100, kv_bytes=1 << 20)
    memory = engine.memory
    assert (memory.max_rows, memory.max_length, memory.row_pages) == (4, 100, 13)
    assert memory.page_bytes == 8 * 2 * 3 * 2 * 16 * 4 and memory.kv_bytes == memory.pages * memory.page_bytes <= 1 << 20
    assert memory.pages == 52 and memory.state_bytes >= memory.kv_bytes and memory.transient_bytes > 0
    assert engine.stats().max_running == 4
    engine.close()


def test_what_is_no_step_program_is_refused(opened, tmp_path):
    with pytest.raises(accrt.OutOfRangeError, match="max_rows is 9, and the bundle has 8"):
        Engine(opened, max_rows=9)
    with pytest.raises(accrt.OutOfDeviceMemoryError, match="hold no page"):
        Engine(opened, kv_bytes=100)


def test_text_is_what_python_decodes():
    """The simulated model gives any bytes: most of them are no characters."""
    rng = random.Random(1)
    outputs, _ = generate(None, [([rng.randrange(256) for _ in range(9)], 300, {"temperature": 1.0}) for _ in range(20)])
    for output in outputs:
        assert output[0]["text"].decode() == bytes(output[0]["tokens"]).decode(errors="replace") and len(output[0]["tokens"]) == 300


def test_a_snapshot_is_json():
    engine = Engine(None, {"max_running": 1})
    for i in range(3):
        engine.submit([1, 2, 3], 5, tenant=i, priority=-i)
    check(lib.accrt_serve_engine_step(engine.engine))
    size = ctypes.c_uint64()
    check(lib.accrt_serve_engine_snapshot(engine.engine, None, 0, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value + 100)  # ages grow meanwhile
    check(lib.accrt_serve_engine_snapshot(engine.engine, text, len(text), ctypes.byref(size)))
    assert size.value == len(text.value) + 1
    said = json.loads(text.value)
    assert said["running"] == 1 and said["waiting"] == 2 and said["limits"]["running"] == 1 and said["healthy"]
    assert {one["id"]: one["state"] for one in said["requests"]} == {1: "waiting", 2: "waiting", 3: "running"}
    short = ctypes.create_string_buffer(b"x" * 20, 20)
    check(lib.accrt_serve_engine_snapshot(engine.engine, short, 20, ctypes.byref(size)))
    assert short.value == text.value[:19] and size.value > 700
    engine.close()


VALIDATED = """
import ctypes, os, sys
import accrt
from accrt import _ffi
from accrt._library import check, lib, struct

bundle = accrt.Bundle(sys.argv[1], instance=accrt.Instance(options={"validate.handles": sys.argv[3]} if sys.argv[3] else {}))
program = bundle.program(weights=[accrt.Weights(path, bundle.instance) for path in sys.argv[2].split(os.pathsep)])
device, model, engine = _ffi.accrt_device_p(), _ffi.accrt_serve_model_p(), _ffi.accrt_serve_engine_p()
check(lib.accrt_instance_device_by_name(bundle.instance.handle, b"host", ctypes.byref(device)))
given = struct(_ffi.accrt_serve_program_options, flags=int(sys.argv[4]))
check(lib.accrt_serve_model_open_program(device, program.handle, ctypes.byref(given), ctypes.byref(model)))
check(lib.accrt_serve_engine_create(model, None, ctypes.byref(engine)))
validated = lib.accrt_serve_engine_flags(engine) & _ffi.ACCRT_SERVE_VALIDATE
print("validated" if validated else "not validated")
lib.accrt_serve_model_release(model)
lib.accrt_serve_engine_release(engine)
if validated:
    lib.accrt_serve_engine_release(engine)
"""


@pytest.mark.parametrize(("option", "flag", "environment", "validated"), [
    ("", 0, "", False), ("1", 0, "", True), ("0", 0, "", False), ("", 1, "", True), ("0", 1, "", True),
    ("", 0, "handles", True), ("0", 0, "handles", False), ("1", 0, "handles", True),
])  # fmt: skip
def test_handles_are_validated_as_the_instance_is(opened, option, flag, environment, validated):
    sources = os.pathsep.join(map(str, opened.weights))
    done = subprocess.run([sys.executable, "-c", VALIDATED, str(opened.bundle), sources, option, str(flag * _ffi.ACCRT_SERVE_VALIDATE)],
                          capture_output=True, text=True, env={**os.environ, "ACCRT_VALIDATE": environment})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ("validated" if validated else "not validated")
    told = "accrt_serve_engine_release: `engine` is released twice: it is engine 2, made by accrt_serve_engine_create"
    assert (told in done.stderr) == validated, done.stderr
