"""Every family of accrt.models on a GPU, with random weights: logits of ragged batches beside those
of transformers and beside the same program on the host, and what the engine generates. Small models
in f32, larger ones in bf16, packed ones from GGUF files, and heads of many sizes. In f32, logits of
families that this transformers does not know, or computes differently, are the recorded ones.

    python tests/gpu/test_families.py FOLDER [PART OF A CASE...]    # a line for each, and FOLDER/results.json

Models are made and run by several processes; one that fails takes no other with it. It needs nvcc
or NVRTC, and transformers. With ACCRT_DEVICE=host it is tried without a GPU."""

from __future__ import annotations

import concurrent.futures
import contextlib
import inspect
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import family_models as family  # noqa: E402
import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
import test_served_models as served  # noqa: E402
import tiny_models as tiny  # noqa: E402

DEVICE = os.environ.get("ACCRT_DEVICE", "cuda:0")
WORKERS = int(os.environ.get("ACCRT_TEST_WORKERS", "0")) or max(1, (os.cpu_count() or 1) - 2)
#: 0: only what is on the GPU; so many more kernels are compiled for the host.
HOST = os.environ.get("ACCRT_TEST_HOST", "1") != "0"
#: Of a case, from beginning to end.
SECONDS = int(os.environ.get("ACCRT_TEST_SECONDS", "0")) or 240
#: By form: how much larger a model is than its configuration here. Rows of packed ones are blocks.
BY = {"f32": 1, "bf16": 8, "q8_0": 8, "q4_k": 16}
TOKENS, ROWS = (1, 8, 64), (1, 8)
PAGE_SIZE = 16  # of scans too, so that each has states of several pages
#: Largest difference of logits, of f32: as on hosts.
ATOL = 2e-4
#: Of bf16, how far a row of logits may be away, of its length: so many times what transformers' own
#: code is away that computes in bf16, and one rounding more; for the median of all positions, and
#: for what nine of ten positions keep below.
TIMES, ROUNDING = 1.5, 2.0**-8
#: In a mixture a token now and then takes another expert, in both, and so a whole row of the five
#: is away from there on: Phi-3.5 MoE's median is 0.012 to 0.031 in transformers, by what the tokens
#: are. So the most of so many draws of tokens counts.
DRAWS_OF_MIXTURES = 8
#: Of packed ones, whose products round what they multiply to 8 bits: the median, and the mean.
PACKED = 0.05, 0.15
#: Elements of a head; where 64 do not divide them, kernels have a part of a chunk.
HEADS = (20, 40, 72, 80, 96, 112, 160, 192, 256)
Q8_0_NAMES = sorted(name for name in family.GGUF if "deepseek" in name or "moe" in name or name in ("phi4", "falcon-40b"))
NAMES = (*family.CONFIGS, *tiny.CONFIGS, *(f"heads-of-{size}" for size in HEADS))
CASES = [*(f"{name} bf16" for name in NAMES), *(f"{name} q4_k" for name in family.OF_K_QUANTS), *(f"{name} q8_0" for name in Q8_0_NAMES), *(f"{name} f32" for name in NAMES)]


# ---- Models --------------------------------------------------------------------------------------


def configuration(case):
    """Of a model whose weights tiny_models draws; None: family_models does."""
    name, form = case.split()
    if name.startswith("heads-of-"):
        return {**family.enlarged(tiny.CONFIGS["llama"], BY[form]), "head_dim": int(name.rpartition("-")[2])}
    return family.enlarged(tiny.CONFIGS[name], BY[form]) if name in tiny.CONFIGS else None


def write(case, folder):
    """The path of the model; of a packed one beside plain.gguf, which has the same numbers."""
    (name, form), config = case.split(), configuration(case)
    dtype = "F32" if form == "f32" else "BF16"
    if config is not None:
        return tiny.write_folder(folder / "m", config, tiny.tensors(config, kh.SEED, gain=1.0), dtype)
    with family.larger(name, BY[form]) if BY[form] > 1 else contextlib.nullcontext():
        if form == "f32":  # the weights of the recorded logits
            return family.write(folder / "m", name)[0]
        if form == "bf16":
            return family.write(folder / "m", name, kh.SEED & 0xFFFF, 1.0, dtype=dtype)[0]
        types = {"q4_k": (family.k_quant, family.of_k_quant), "q8_0": (_q8_0, lambda called, array: tiny.q8_0_values(array) if _q8_0(called, array) == "Q8_0" else array)}
        (packed, numbers), gain = types[form], family.GAINS_OF_K_QUANTS.get(name, 1.5)
        family.write_gguf(folder / "m.gguf", name, packed, gain=gain)
        family.write_gguf(folder / "plain.gguf", name, changed=numbers, gain=gain)
        return folder / "m.gguf"


def _q8_0(name, _array):
    return "F32" if "ffn_gate_inp" in name or "position" in name else "Q8_0"


def options_of(form):
    from accrt import models

    return models.Options(page_size=PAGE_SIZE, kv_type="f32" if form in ("f32", "plain") else "", token_buckets=TOKENS, row_buckets=ROWS, sample_buckets=ROWS, change_buckets=(32,), edit_buckets=(4,))


def targets():
    """What is compiled for the device, and the host."""
    arch = []
    if DEVICE != "host":
        import cuda_exec

        found = cuda_exec.driver().arch
        arch = [found if found in ("sm_80", "sm_90") else "ptx"]
    return arch, kh.host_targets()[-1:] if HOST or not arch else []


def units(case, arch):
    """Pieces of CUDA code that a model needs: [(source, architecture)]."""
    from accrt import models
    from accrt.compiler import driver
    from accrt.compiler.cuda import nvcc

    with tempfile.TemporaryDirectory() as folder:
        made = models.decoder(models.read(write(case, pathlib.Path(folder))), options_of(case.split()[1]))
        kernels = driver.kernels_of(made.build(), "cuda")
    found = {(k.producer, nvcc.TARGETS[arch] + ("a" if arch in k.producer.exact else "")) for k in nvcc._wanted(kernels, arch)}
    return [*found, *{(v.producer, v.arch) for k in kernels for v in k.specials if v.arch.rstrip("a") == arch}]


# ---- A case --------------------------------------------------------------------------------------


def padded(work):
    tokens = sum(count for _row, count in work)
    rows = next(size for size in ROWS if size >= len(work))
    return {"tokens": next(size for size in TOKENS if size >= tokens), "rows": rows, "samples": rows, "changes": 32}


def is_recorded(case):
    """Whether transformers' logits of these weights are in family_models.json."""
    name, form = case.split()
    return form == "f32" and name in family.CONFIGS


def ids_of(case, vocabulary):
    if is_recorded(case):
        return family.ids_of(family.CONFIGS[case.split()[0]])[:, : served.LENGTH]
    return np.random.default_rng(kh.SEED).integers(0, vocabulary, (served.ROWS, served.LENGTH))


def apart(found, expected):
    """How far rows are away, of their length: the median, what nine of ten keep below, the
    largest."""
    errors = [served.far(result, expected[row][position]) for row, position, result in found]
    return [float(np.median(errors)), float(np.quantile(errors, 0.9)), float(max(errors))]


def of_host(found, ids):
    """As `expected` has it, of what was run."""
    made = np.full((*ids.shape, len(found[0][2])), np.nan, np.float32)
    for row, position, result in found:
        made[row][position] = result
    return made


def reads_no_swiglu():
    import transformers

    return not hasattr(transformers.GptOssConfig(), "swiglu_alpha")


def norms_all_groups(name):
    """Whether this transformers norms what a Mamba mixer gives over all groups at once. Since 5.24
    it does so group by group, as the models' authors do."""
    from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated

    groups = max(family.CONFIGS.get(name, {}).get(key, 1) for key in ("n_groups", "mamba_n_groups"))
    return groups > 1 and "falcon" not in name and "group_size" not in inspect.signature(MambaRMSNormGated).parameters


def check(case, folder):
    """What was found of a case: {what: number}. Raises AssertionError, and what anything raises."""
    import accrt
    from accrt import models

    folder, (name, form), begun = pathlib.Path(folder), case.split(), time.monotonic()
    if name.startswith("gpt-oss") and form == "bf16" and reads_no_swiglu():
        return {"skipped": "this transformers has a limit and an alpha of its own, and does not read the configuration's"}
    if form != "f32" and norms_all_groups(name):
        return {"skipped": "this transformers norms all groups of a Mamba mixer at once"}
    path, (arch, host) = write(case, folder), targets()
    opened = models.open(path, options=options_of(form), targets=[*arch, *host], output=folder / "m.accx")
    said = {"built": time.monotonic() - begun}
    instance = accrt.default_instance("all")
    programs = [accrt.Bundle(opened.bundle, instance).program(instance.device(device), weights=list(opened.weights)) for device in ((DEVICE, "host") if HOST else (DEVICE,))]
    ids = ids_of(case, int(opened.info["serve.vocab_size"]))
    found, *beside = (served.Served(program).whole(ids, padded=padded) for program in programs)
    assert all(np.isfinite(result).all() for _row, _position, result in found), "there are numbers that are not finite"
    again = served.Served(programs[0]).whole(ids, padded=padded)
    assert all(np.array_equal(a[2], b[2]) for a, b in zip(found, again)), "two runs differ"
    compare = check_f32 if form == "f32" else check_bf16 if form == "bf16" else check_packed
    failed = []
    for one in (lambda: compare(case, path, programs, ids, found, beside, said), lambda: check_generated(case, path, opened, programs, said)):
        try:
            one()
        except AssertionError as error:
            failed.append(str(error).splitlines()[0][:400])
    said["seconds"] = time.monotonic() - begun
    assert not failed, f"{'; '.join(failed)} {told(said)}"
    return said


def check_f32(case, path, programs, ids, found, beside, said):
    """Recorded logits are those of some columns; what is beside the host has all."""
    embedded, *same = (served.Served(program).whole(ids, "embed", padded) for program in programs)
    compared = [("host", found, of_host(one, ids)) for one in beside]
    if is_recorded(case):
        some = [(row, position, result[list(family.COLUMNS)]) for row, position, result in found]
        compared += [("transformers", some, family.expected(case.split()[0])), *(("hidden", embedded, of_host(one, ids)) for one in same)]
    else:
        logits, hidden = family.theirs(path, ids)
        compared += [("transformers", found, logits), ("hidden", embedded, hidden)]
    for what, results, expected in compared:
        said[what] = max(float(np.abs(result - expected[row][position]).max()) for row, position, result in results)
    wrong = [f"{what}: {said[what]}" for what, *_rest in compared if not said[what] <= ATOL]
    assert not wrong, "; ".join(wrong)


def check_bf16(_case, path, _programs, ids, found, beside, said):
    from accrt import models

    expected = family.theirs(path, ids)[0]
    mixture = any(".experts." in name or "block_sparse_moe" in name for name in models.read(path).tensors)
    rng = np.random.default_rng(kh.SEED)
    draws = [ids, *(rng.integers(0, len(found[0][2]), ids.shape) for _ in range(DRAWS_OF_MIXTURES - 1 if mixture else 0))]
    own = np.max([own_of(path, drawn, expected if drawn is ids else family.theirs(path, drawn)[0], found) for drawn in draws], 0).tolist()
    said.update(transformers=apart(found, expected), own=own, **{"host": apart(found, of_host(one, ids)) for one in beside})
    for what in ("transformers", *(["host"] if beside else [])):
        for at, name in enumerate(("median", "of nine of ten")):
            assert said[what][at] <= TIMES * own[at] + ROUNDING, f"{what}: {name} {said[what][at]:.4f}, in bf16 transformers is {own[at]:.4f} away"


def own_of(path, ids, expected, found):
    """How far transformers is away that computes in bf16, where `found` has results."""
    rounded = family.theirs(path, ids, "bfloat16")[0]
    return apart([(row, position, rounded[row][position]) for row, position, _result in found], expected)


def check_packed(_case, path, _programs, ids, found, beside, said):
    import accrt
    from accrt import models

    arch, host = targets()
    plain = models.open(path.parent / "plain.gguf", options=options_of("plain"), targets=host or arch, output=path.parent / "plain.accx")
    instance = accrt.default_instance("all")
    program = accrt.Bundle(plain.bundle, instance).program(instance.device("host" if host else DEVICE), weights=list(plain.weights))
    expected = of_host(served.Served(program).whole(ids, padded=padded), ids)
    said.update(numbers=apart(found, expected), **{"host": apart(found, of_host(one, ids)) for one in beside})
    errors = [served.far(result, expected[row][position]) for row, position, result in found]
    assert np.median(errors) <= PACKED[0] and np.mean(errors) <= PACKED[1], f"median {np.median(errors):.4f}, mean {np.mean(errors):.4f}"


def logits_after(program, prompts, tokens):
    """[prompt, token, column]: of the program, when each token in turn has been given."""
    ids = [prompt + after for prompt, after in zip(prompts, tokens)]
    _rng, batches = served.Served(program).batches(kh.SEED)
    steps = [[(row, len(prompt)) for row, prompt in enumerate(prompts)], *([[(row, 1) for row in range(len(prompts))]] * (len(tokens[0]) - 1))]
    return np.stack([batches.step(work, ids, **padded(work)) for work in steps], 1)


def check_generated(case, path, opened, programs, said):
    """16 tokens of five prompts at once, and of each alone: each is the likeliest of what
    transformers, or the host's program, says, as far as the type goes."""
    import accrt

    form = case.split()[1]
    if form not in ("f32", "bf16"):
        return
    rng, given = random.Random(kh.SEED), {"max_tokens": 16, "temperature": 0, "ignore_eos": True}
    prompts = [[rng.randrange(250) for _ in range(count)] for count in (1, 5, 9, 17, 20)]
    with accrt.LLM(opened.bundle, weights=opened.weights, device=DEVICE, kv_bytes=1 << 24, prepare=0) as llm:
        together = [one.token_ids for one in llm.generate(prompts, **given)]
    with accrt.LLM(opened.bundle, weights=opened.weights, device=DEVICE, kv_bytes=1 << 24, prepare=0, max_running=1) as llm:
        alone = [llm.generate(prompt, **given).token_ids for prompt in prompts]
    assert all(len(tokens) == 16 for tokens in (*together, *alone))
    said["same"] = sum(a == b for a, b in zip(together, alone))
    likely, count, pairs = 0, 0, [*zip(prompts, together), *zip(prompts, alone)]
    if is_recorded(case):
        logits = np.concatenate([logits_after(programs[-1], prompts, tokens) for tokens in (together, alone)])
    else:  # what comes after a token changes nothing of it
        whole = family.theirs(path, [(prompt + tokens + [0] * 20)[:36] for prompt, tokens in pairs])[0]
        logits = [rows[len(prompt) - 1 :] for (prompt, _tokens), rows in zip(pairs, whole)]
    for (_prompt, tokens), rows in zip(pairs, logits):
        for token, row in zip(tokens, rows):
            room = 2 * ATOL if form == "f32" else 12 * max(said["own"][1], ROUNDING) * float(np.sqrt(np.mean(row * row)))
            likely, count = likely + bool(row[token] >= row.max() - room), count + 1
    said["likeliest"] = likely / count
    assert likely >= (count if form == "f32" else 0.95 * count), f"{count - likely} of {count} tokens that were generated are not the likeliest"


def told(said):
    def text(value):
        return "/".join(f"{one:.2g}" for one in value) if isinstance(value, list) else f"{value:.2g}"

    return " ".join(f"{name} {text(value)}" for name, value in said.items())


# ---- Processes -----------------------------------------------------------------------------------


def _serve(end):
    """In a process of its own: calls of functions until one fails, whose GPU may be in no state to
    go on with."""
    while True:
        try:
            function, given = end.recv()
        except EOFError:  # there is no more
            return
        try:
            end.send((True, function(*given)))
        except BaseException as error:
            lines = traceback.format_exception(type(error), error, error.__traceback__)
            end.send((False, (f"{type(error).__name__}: {error}", "".join(lines[-6:]))))
            return


class Worker:
    """Calls functions in a process of its own, which is made when it is needed. For one thread."""

    def __init__(self):
        self.process, self.end = None, None

    def __call__(self, function, *given):
        """(whether it went well, the result or (error, where it came from))."""
        context = multiprocessing.get_context("spawn")
        if self.process is None:
            self.end, other = context.Pipe()
            self.process = context.Process(target=_serve, args=(other,), daemon=True)
            self.process.start()
            other.close()
        result = (False, (f"it takes more than {SECONDS} s", ""))
        try:
            self.end.send((function, given))
            if self.end.poll(SECONDS):
                result = self.end.recv()
        except (EOFError, OSError):
            self.process.join(5)
            result = (False, (f"the process ended with {self.process.exitcode}", ""))
        if not result[0]:
            self.process.kill()
            self.process.join(5)
            self.process = None
        return result


class Workers:
    """Threads with a worker each."""

    def __init__(self):
        self.own, self.pool = threading.local(), concurrent.futures.ThreadPoolExecutor(WORKERS)

    def each(self, function, jobs, done):
        """done(job, *what the worker gave) of each, in the order in which they end."""
        for future in concurrent.futures.as_completed([self.pool.submit(self._run, function, job) for job in jobs]):
            job, result = future.result()
            done(job, *result)

    def _run(self, function, job):
        if not hasattr(self.own, "worker"):
            self.own.worker = Worker()
        return job, self.own.worker(function, *job)


def compiled(workers, cases, arch, say):
    """The pieces of CUDA code of some of the cases, each once, into the cache: the others need few
    more."""
    from accrt.compiler.cuda import nvcc

    begun, found, some = time.monotonic(), {}, cases[:: -(-len(cases) // WORKERS)]
    workers.each(units, [(case, arch) for case in some], lambda job, good, result: found.update(dict.fromkeys(result)) if good else None)
    planned = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [error for error in (future.exception() for future in [pool.submit(nvcc.compile_unit, *unit) for unit in found]) if error]
    say(f"{len(found)} pieces of code of {len(some)} models, found in {planned - begun:.0f} s, compiled in {time.monotonic() - planned:.0f} s; {len(failed)} failed")
    for error in failed[:5]:
        say(f"  {error}"[:2000])


def run_all(cases, folder, say=print):
    """{case: {what: number}, with "failed" where it did}."""
    results, workers = {}, Workers()
    arch = targets()[0]
    if arch:
        compiled(workers, cases, arch[0], say)

    def done(job, good, result):
        case = job[0]
        shutil.rmtree(job[1])
        if not good and "does not recognize this architecture" in result[0]:
            good, result = True, {"skipped": "this transformers does not know it"}
        results[case] = result if good else {"failed": result[0], "trace": result[1]}
        say(f"{case:30} {'skipped' if 'skipped' in results[case] else 'ok     ' + told(result) if good else 'FAILED ' + result[0][:500]}")
        with open(os.path.join(folder, "results.json"), "w") as file:
            json.dump(results, file, indent=1)

    with tempfile.TemporaryDirectory() as models:
        jobs = []
        for number, case in enumerate(cases):
            os.mkdir(os.path.join(models, str(number)))
            jobs.append((case, os.path.join(models, str(number))))
        workers.each(check, jobs, done)
    return results


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """Of all cases that this run has, at once."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    why = "" if DEVICE == "host" else test_ops.reason("families")
    if why:
        pytest.skip(why)
    print("seed", kh.SEED)
    chosen = [item.callspec.params["case"] for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    return run_all(chosen, tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize("case", CASES)
def test_a_family(results, case):
    print("seed", kh.SEED)
    if "skipped" in results[case]:
        pytest.skip(results[case]["skipped"])
    assert "failed" not in results[case], f"{results[case]['failed']}\n{results[case]['trace']}"


def main():
    folder, parts = sys.argv[1], sys.argv[2:]
    os.makedirs(folder, exist_ok=True)
    print("seed", kh.SEED, flush=True)
    chosen = [case for case in CASES if not parts or any(part in case for part in parts)]
    results = run_all(chosen, folder, lambda line: print(line, flush=True))
    failed = [case for case in chosen if "failed" in results[case]]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} cases passed" + (f"; failed: {', '.join(failed)}" if failed else ""), flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
