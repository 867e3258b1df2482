"""The bundle of served.h: a step program whose kernels are for GPUs alone."""

from __future__ import annotations

import pathlib

from accrt import bundle_writer as bw

P = bw.Parameter
Class = bw.SymbolClass
VOCAB, PAGE, TOP = 64, 16, 20
BUCKETS = {"token": (1, 2, 4, 8, 16, 32, 64), "row": (1, 2, 4, 8, 16), "sample": (1, 2, 4, 8, 16), "change": (2, 16), "edit": (1, 8, 80)}


def kernel(bundle, image, name, buffers, symbols):
    """`buffers`: {name: access}."""
    parameters = [P(each, "buffer", access) for each, access in buffers.items()] + [P(each, "symbol") for each in symbols]
    return bundle.kernel(name, parameters).variant(image, driver="cuda", arch_kind="portable", arch="sm_80", block=1)


def read(*names):
    return dict.fromkeys(names, "read")


def dispatch(f, kernel, given, symbols):
    ranges = {"read": lambda x: x.read(), "write": lambda x: x.write(), "read_write": lambda x: x.update()}
    arguments = {p.name: ranges[p.access](given[p.name]) for p in kernel.parameters if p.kind == "buffer"}
    f.body.dispatch(kernel, {**arguments, **symbols}, (1, 1, 1))


def bundle(longest=512, **buckets):
    """`buckets`: other ones than BUCKETS."""
    sizes = {**BUCKETS, **buckets}
    made = bw.BundleWriter()
    image = made.image("served", pathlib.Path(__file__).with_name("served.ptx").read_bytes() + b"\0", bw.ImageKind.PTX)
    s = {name: made.symbol(name, minimum=1, maximum=sizes[name[:-1]][-1]) for name in ("tokens", "rows", "samples", "changes", "edits")}
    s.update({name: made.symbol(name, Class.SESSION, minimum=1, maximum=most) for name, most in (("pages", 1 << 20), ("table_rows", 1 << 10))})
    s["table_pages"] = made.symbol("table_pages", Class.SESSION, minimum=1, maximum=longest // PAGE)
    states = {"keys": made.state("kv.0.k", "i32", [s["pages"], PAGE]), "page_table": made.state("page_table", "i32", [s["table_rows"], s["table_pages"]]),
              "last_token": made.state("last_token", "i32", [s["table_rows"]])}  # fmt: skip
    changes = {"change_slots": "changes", "change_pages": "changes"}
    inputs = {"token_ids": "tokens", "positions": "tokens", "slots": "tokens", "token_rows": "tokens", "row_starts": "rows", "row_ids": "rows",
              "kv_lengths": "rows", **changes, "sample_tokens": "samples"}  # fmt: skip

    def function(name, shapes, results, used, symbols):
        """`shapes`: {input: (type, shape)}; `used`: {state: access}."""
        f = made.function(name)
        given = {each: f.input(each, *shape) for each, shape in shapes.items()}
        given.update({each: f.result(each, *shape) for each, shape in results.items()})
        given.update({each: f.state(states[each]) for each in used})
        written = dict.fromkeys(results, "write")
        short = {"update_pages": "update", "copy_rows": "copy", "sample_greedy": "greedy"}.get(name, name)
        # sample's last state lies behind its results, as served.h has them
        dispatch(f, kernel(made, image, f"served_{short}_kernel", {**read(*shapes), **written, **used}, symbols), given, {each: s[each] for each in symbols})

    def ids(names):
        return {name: ("i32", [s[size] + 1 if name == "row_starts" else s[size]]) for name, size in names.items()}

    row = [s["samples"]]
    logits = {"logits": ("f32", [s["samples"], VOCAB])}
    function("update_pages", ids(changes), {}, {"page_table": "read_write"}, ["changes"])
    function("copy_rows", ids({"copy_from": "changes", "copy_to": "changes"}), {}, {"keys": "read_write"}, ["changes"])
    function("step", ids(inputs), logits, {"keys": "read_write", "page_table": "read_write", "last_token": "read"},
             ["tokens", "rows", "samples", "changes", "table_pages"])  # fmt: skip
    function("sample_greedy", {**logits, "sample_rows": ("i32", row)}, {"token": ("i32", row)}, {"last_token": "read_write"}, ["samples"])
    sampled = {
        "sample_rows": ("i32", row), "temperature": ("f32", row), "top_k": ("i32", row), "top_p": ("f32", row), "min_p": ("f32", row),
        "seed": ("u32", [*row, 2]), "position": ("i32", row), "edit_starts": ("i32", [s["samples"] + 1]), "edit_tokens": ("i32", [s["edits"]]),
        "edit_multiply": ("f32", [s["edits"]]), "edit_add": ("f32", [s["edits"]]), "mask_rows": ("i32", row), "mask_bits": ("u32", [*row, VOCAB // 32]),
    }  # fmt: skip
    told = {"token": ("i32", row), "logprob": ("f32", row), "top_ids": ("i32", [*row, TOP]), "top_logprobs": ("f32", [*row, TOP]), "rank": ("i32", row)}
    function("sample", {**logits, **sampled}, told, {"last_token": "read_write"}, ["samples"])
    for key, value in {"version": 1, "name": "served", "vocab_size": VOCAB, "page_size": PAGE, "max_position": longest, "kv_bytes_per_token": 4,
                       "eos": ""}.items():  # fmt: skip
        made.metadata(f"serve.{key}", str(value))
    for name, values in sizes.items():
        made.metadata(f"serve.{name}_buckets", ",".join(map(str, values)))
    return made.to_bytes()
