"""Generates the entry points of libaccrt, in abi/entries.c. abi/gen.py calls it.

Every function that takes or returns a handle has a generated entry point. It checks one flag (does
an instance validate handles?) and goes on to the function's body. The sources define the body under
the function's name, and abi/bodies.h renames it for the linker. So functions of the library call
one another without validation, and no body contains any.

The rule of ownership is here and in include/accrt/base.h: a function's name says whether its handle
is owned or lent.
"""
from __future__ import annotations

import re

from pycparser import c_ast, c_generator

#: A function returns an owned reference when its name has one of these verbs:
#: accrt_bundle_open_path.
OWNED_VERBS = ("create", "open", "load", "wrap", "import", "clone", "register")
#: Handles that a function releases when it succeeds.
CONSUMED = {("accrt_stream_free", "buffer")}
#: One letter for each type of handle; abi/watch.c has the same.
LETTERS = {"instance": "i", "device": "d", "pool": "p", "buffer": "b", "stream": "s", "event": "e", "semaphore": "m", "launch": "l",
           "commands": "c", "kernel_pack": "k", "kernel": "n", "bundle": "u", "weights": "w", "adapter": "a", "program": "g",
           "session": "t", "call": "x"}
#: Handles of the libraries above, and their types' names in messages (serve/handles.h).
ABOVE = {"serve_model": "model", "serve_engine": "engine", "serve_constraint": "constraint", "serve_grammars": "grammars",
         "http_server": "server", "http_job": "job", "http_calls": "calls", "bundle_writer": "bundle writer"}
#: A function that makes a handle and whose name has no such verb.
OWNED_BESIDE = ("accrt_serve_grammars_constraint",)
#: The function whose job is lent until one of these has answered it.
DUE, ANSWERS = "accrt_http_next", ("accrt_http_start", "accrt_http_fail", "accrt_http_answer")
#: The parameter with the number of elements of an array of structs or handles. Parameters without
#: an entry are single.
COUNTS = {("accrt_stream_launch", "arguments"): "argument_count", ("accrt_commands_dispatch", "arguments"): "argument_count",
          ("accrt_commands_invoke", "arguments"): "argument_count", ("accrt_stream_submit", "bindings"): "binding_count",
          ("accrt_stream_run", "bindings"): "binding_count", ("accrt_semaphore_wait_many", "timepoints"): "count",
          ("accrt_call_submit", "waits"): "wait_count", ("accrt_call_submit", "signals"): "signal_count",
          ("accrt_program_swap_weights", "weights"): "weight_count", ("accrt_program_load_weights", "weights"): "weight_count",
          ("accrt_http_start", "requests"): "count",
          ("accrt_program_swap_weights_within", "weights"): "weight_count", ("accrt_program_load_weights_within", "weights"): "weight_count"}
#: Fields of structs that are arrays of handles, and the field with their count.
ARRAY_FIELDS = {("accrt_program_options", "weights"): "weight_count"}


def owned(function: str) -> bool:
    """True when the name says that the function returns an owned handle."""
    words = function.split("_")
    return function in OWNED_BESIDE or any(verb in words for verb in OWNED_VERBS)


def handle_of(api, node: c_ast.Node) -> str | None:
    """"stream" for accrt_stream_t."""
    if not isinstance(node, c_ast.TypeDecl) or not isinstance(node.type, c_ast.IdentifierType):
        return None
    name = re.sub(r"^accrt_|_t$", "", " ".join(node.type.names))
    return name if f"accrt_{name}" not in api.structs and (name in LETTERS or name in ABOVE) else None


def struct_of(api, node: c_ast.Node) -> str | None:
    """"accrt_place" for accrt_place_t."""
    if not isinstance(node, c_ast.TypeDecl) or not isinstance(node.type, c_ast.IdentifierType):
        return None
    name = re.sub(r"_t$", "", " ".join(node.type.names))
    return name if name in api.structs else None


def handles_in(api, struct: str, prefix: str = "") -> list[tuple[str, str, str]]:
    """(field path, type, count field or "") of the handles in a struct, those of structs within it
    too."""
    found = []
    for field in api.structs[struct].decls:
        if isinstance(field.type, c_ast.PtrDecl):
            inner = field.type.type
            if handle := handle_of(api, inner):
                found.append((prefix + field.name, handle, ""))
            elif isinstance(inner, c_ast.PtrDecl) and (handle := handle_of(api, inner.type)):
                found.append((prefix + field.name, handle, prefix + ARRAY_FIELDS[struct, field.name]))
        elif inner := struct_of(api, field.type):
            found += handles_in(api, inner, f"{prefix}{field.name}.")
    return found


class Parameter:
    """One parameter of a function, and the handle that it is or contains."""

    def __init__(self, api, function: str, node: c_ast.Decl) -> None:
        self.name, self.role, self.type, self.count = node.name, "", "", ""
        out = node.name is not None and node.name.startswith("out_")
        if not isinstance(node.type, c_ast.PtrDecl):
            return
        target = node.type.type
        if isinstance(target, c_ast.PtrDecl):
            if handle := handle_of(api, target.type):
                self.type = handle
                self.role = ("owned" if owned(function) else "lent") if out else "handles"
            elif not out and (struct := struct_of(api, target.type)) and handles_in(api, struct):
                self.type, self.role = struct, "structs"
        elif handle := handle_of(api, target):
            self.type = handle
            self.role = "consumed" if (function, node.name) in CONSUMED or function.endswith("_release") else "handle"
        elif (struct := struct_of(api, target)) and handles_in(api, struct):
            self.type = struct
            self.role = ("owned tensor" if owned(function) else "lent tensor") if out else "structs"
        elif out and isinstance(target, c_ast.TypeDecl) and isinstance(target.type, c_ast.IdentifierType):
            self.type = {"uint32_t": "4", "int32_t": "4", "uint64_t": "8", "int64_t": "8"}.get(" ".join(target.type.names), "")
            self.role = "zero" if self.type else ""
        if self.role in ("handles", "structs"):
            self.count = COUNTS.get((function, self.name), "")


class Function:
    def __init__(self, api, name: str) -> None:
        node = api.functions[name].type
        self.name, self.node = name, node
        self.declarations = [p for p in (node.args.params if node.args else []) if p.name]
        self.parameters = [Parameter(api, name, p) for p in self.declarations]
        self.result = c_generator.CGenerator().visit(node.type).replace(f" {name}", "").replace(f"*{name}", "*").strip()
        self.lends = handle_of(api, node.type.type) if isinstance(node.type, c_ast.PtrDecl) else None

    @property
    def has_handles(self) -> bool:
        return any(p.role not in ("", "zero") for p in self.parameters)

    @property
    def taken(self) -> list[Parameter]:
        return [p for p in self.parameters if p.role in ("handle", "consumed", "handles", "structs")]

    @property
    def given(self) -> list[tuple[str, str]]:
        """(type, "owned" or "lent") of the handles that it returns."""
        found = [(p.type if "tensor" not in p.role else "buffer", p.role.split()[0]) for p in self.parameters
                 if p.role in ("owned", "lent", "owned tensor", "lent tensor")]
        if self.lends:
            found.append((self.lends, "owned" if self.name.endswith("_retain") else "lent"))
        return found


def functions(api, names: list[str]) -> list[Function]:
    return [Function(api, n) for n in names if n in api.functions]


def struct_list(listed: list[Function]) -> list[str]:
    return sorted({p.type for f in listed for p in f.parameters if p.role == "structs"})


def specification(function: Function, structs: list[str]) -> str:
    """One item for each parameter with a role: code, type, the position of its count or '-', its
    own position, its name."""
    at = {p.name: i for i, p in enumerate(function.parameters)}
    items = []
    for i, p in enumerate(function.parameters):
        code = {"handle": "h", "consumed": "c", "owned": "o", "lent": "l", "handles": "a", "structs": "s", "owned tensor": "O",
                "lent tensor": "L", "zero": "z"}.get(p.role)
        if code is None:
            continue
        kind = chr(ord("A") + structs.index(p.type)) if code == "s" else p.type if code == "z" else LETTERS.get(p.type, "b")
        items.append(f"{code}{kind}{chr(ord('0') + at[p.count]) if p.count else '-'}{chr(ord('0') + i)}{p.name}")
    if function.name.endswith("_retain"):
        items.insert(0, f"r{LETTERS[function.lends]}--")
    elif function.lends:
        items.insert(0, f"g{LETTERS[function.lends]}--")
    return ",".join(items)


def render_entry(function: Function, structs: list[str], star) -> str:
    generator = c_generator.CGenerator()
    declared = ", ".join(star(generator.visit(p)) for p in function.declarations)
    arguments = ", ".join(p.name for p in function.declarations)
    name, result = function.name.replace("accrt_", "", 1), function.result.replace(" *", "*")
    if function.name == "accrt_instance_create":
        return f"{result} accrt_{name}({declared}) {{\n  return accrt_watch_instance({arguments});\n}}\n"
    check_words(function)
    last = max(i for i, p in enumerate(function.parameters) if p.role or any(q.count == p.name for q in function.parameters))
    wanted = {p.name for p in function.parameters if p.role} | {p.count for p in function.parameters if p.count}
    words = ", ".join(f"(uintptr_t){p.name}" if p.name in wanted else "0" for p in function.parameters[:last + 1])
    roles = f'"{specification(function, structs)}"'
    if result == "void":
        return f"ENTRY_VOID({name}, ({declared}), ({arguments}), {roles}, {words})\n"
    gives = any(p.role in ("owned", "lent", "owned tensor", "lent tensor", "consumed") for p in function.parameters)
    kind = ("GIVING" if gives else "STATUS") if result == "accrt_status_t" else \
        "RETAIN" if name.endswith("_retain") else "LENDING" if function.lends else "VALUE"
    return f"ENTRY({result}, {name}, ({declared}), ({arguments}), {kind}, {roles}, {words})\n"


def check_words(function: Function) -> None:
    """abi/watch_call.c passes eight integers and pointers on, of whatever types."""
    for declaration in function.declarations:
        kind = declaration.type
        names = kind.type.names if isinstance(kind, c_ast.TypeDecl) and isinstance(kind.type, c_ast.IdentifierType) else []
        if not (isinstance(kind, (c_ast.PtrDecl, c_ast.ArrayDecl)) or re.fullmatch(r"u?int\d+_t|size_t|int|accrt_status_t|\w+_fn_t", " ".join(names))):
            raise SystemExit(f"{function.name}: {declaration.name} is neither an integer nor a pointer; abi/watch_call.c passes no other")
    if len(function.declarations) > 8:
        raise SystemExit(f"{function.name} has more than the eight arguments that abi/watch_call.c passes")


HEAD = '''/* abi/entries.c - the entry points of functions that take or return handles. See abi/watch.h.
 * Generated by abi/gen.py from abi/api.def and the headers: do not edit.
 */
#include "abi/watch_entry.h"
#include "accrt/accrt.h"

/* clang-format off */
'''


def render_entries(api, names: list[str], star) -> str:
    listed = [f for f in functions(api, names) if f.has_handles]
    structs = struct_list(listed)
    out = [HEAD, "const accrt_watch_field_t accrt_watch_fields[] = {\n"]
    for struct in structs:
        for path, kind, count in handles_in(api, struct):
            counted = f"offsetof({struct}_t, {count})" if count else "0"
            out.append(f"    {{offsetof({struct}_t, {path}), {counted}, '{LETTERS[kind]}', \"{path}\"}},\n")
    first = 0
    out.append("};\nconst accrt_watch_struct_t accrt_watch_structs[] = {\n")
    for struct in structs:
        sized = api.structs[struct].decls[0].name == "struct_size"
        own = {"accrt_binding_place": "ACCRT_WATCH_UNBOUND", "accrt_kernel_argument": "ACCRT_WATCH_MEMORY"}
        when = own.get(struct, "ACCRT_WATCH_SIZED" if sized else "ACCRT_WATCH_ALWAYS")
        count = len(handles_in(api, struct))
        out.append(f"    {{sizeof({struct}_t), {first}, {count}, {when}}},\n")
        first += count
    out.append("};\n\n")
    out += [render_entry(f, structs, star) for f in listed]
    return "".join(out)


def stubs(api, names: list[str]) -> set[str]:
    """The functions whose entry point is an ENTRY."""
    return {f.name for f in functions(api, names) if f.has_handles} - {"accrt_instance_create"}


def render_bodies(api, names: list[str]) -> str:
    listed = [f for f in functions(api, names) if f.has_handles]
    return ("/* abi/bodies.h - renames the functions whose entry points are in abi/entries.c. Every source of the library, except those of abi/,\n"
            " * includes it before everything else. Generated by abi/gen.py: do not edit.\n */\n" +
            "".join(f"#pragma redefine_extname {f.name} {f.name.replace('accrt_', 'accrt_body_', 1)}\n" for f in listed))


def render_ownership(api, names: list[str]) -> str:
    """For docs/concepts.md: the functions that return a handle, owned or lent."""
    given: dict[str, dict[str, list[str]]] = {}
    for function in functions(api, names):
        for handle, how in function.given:
            given.setdefault(handle, {"owned": [], "lent": []})[how].append(function.name)
    rows = ["| handle | owned from | lent by |\n| --- | --- | --- |\n"]
    for handle in (h for h in (*LETTERS, *ABOVE) if h in given):
        columns = [", ".join(f"`{n}`" for n in given[handle][how] if not n.endswith("_retain")) or "" for how in ("owned", "lent")]
        rows.append(f"| `accrt_{handle}_t` | {columns[0]} | {columns[1]} |\n")
    return "".join(rows)


# ---- The libraries above: libaccrt_serve and libaccrt_http ---------------------------------------

ABOVE_HEAD = '''/* @FOLDER@/entries.c - the entry points of functions that take or return handles. See
 * serve/handles.h. Generated by abi/gen.py from @DEF@ and the headers: do not edit.
 */
#include "@ALL@"
#include "serve/handles.h"

/* clang-format off */
'''


#: What asks for validation where a handle is made, beside the environment. An engine has what its
#: model has, unless its own options ask.
ASKS = {
    "accrt_serve_model_wrap": "accsv_handle_asked(functions)",
    "accrt_serve_model_create_simulated": "accsv_handle_asked(options)",
    "accrt_serve_model_open_program": "accsv_handle_asked_by_device(options, device)",
    "accrt_serve_constraint_create": "accsv_handle_asked(functions)",
    "accrt_serve_engine_create": "accsv_handle_asked(options)",
    "accrt_http_server_create": "accsv_handle_asked_by_flags(options, accrt_serve_engine_flags(engine))",
    "accrt_http_calls_create": "ACCSV_ASK_ENVIRONMENT",
}


class AboveEntry:
    """An entry point of a library above. It checks the handles of that library; others are for the
    library that made them."""

    def __init__(self, api, function: Function, prefix: str, star) -> None:
        self.api, self.function, self.prefix = api, function, prefix
        generator = c_generator.CGenerator()
        self.declared = ", ".join(star(generator.visit(p)) for p in function.declarations)
        self.arguments = ", ".join(p.name for p in function.declarations)
        self.result = function.result.replace(" *", "*")

    def is_own(self, kind: str) -> bool:
        return kind.startswith(self.prefix)

    @property
    def taken(self) -> list[Parameter]:
        return [p for p in self.function.taken if p.role in ("handle", "consumed") and self.is_own(p.type)]

    @property
    def given(self) -> Parameter | None:
        return next((p for p in self.function.parameters if p.role in ("owned", "lent") and self.is_own(p.type)), None)

    @property
    def has_own(self) -> bool:
        return bool(self.taken or self.given or (self.function.lends and self.is_own(self.function.lends)))

    def checks(self) -> list[str]:
        """Calls that give a status, one for each handle."""
        name, calls = self.function.name, []
        use = "RETAIN" if name.endswith("_retain") else "RELEASE" if name.endswith("_release") else "ANSWER" if name in ANSWERS else "USE"
        for p in self.taken:
            calls.append(f'accsv_handle_check(__func__, "{p.name}", {p.name}, "{ABOVE[p.type]}", ACCSV_HANDLE_{use})')
        for p in (p for p in self.function.taken if p.role == "structs"):
            for field, kind, count in handles_in(self.api, p.type):
                if not self.is_own(kind):
                    continue
                if count or p.count:
                    raise SystemExit(f"{name}: {p.name}.{field} is a handle that no entry point checks")
                reach = f"{p.name} != NULL && {p.name}->struct_size >= offsetof({p.type}_t, {field}) + sizeof(void*)"
                calls.append(f'{reach} ? accsv_handle_check(__func__, "{p.name}.{field}", {p.name}->{field}, "{ABOVE[kind]}", '
                             "ACCSV_HANDLE_USE) : ACCRT_OK")
        return calls

    def refused(self) -> str:
        if self.result == "void":
            return "return;"
        if self.result == "accrt_status_t":
            return "return checked;"
        if self.function.name.endswith("_retain"):
            return f"return {self.function.declarations[0].name};"
        return f"return {'NULL' if self.result.endswith('*') else '-1' if self.result == 'int' else '0'};"

    def render(self) -> str:
        function, name = self.function, self.function.name
        body = f"{name.replace('accrt_', 'accrt_body_', 1)}({self.arguments})"
        declared = f"{self.result} {body.split('(')[0]}({self.declared});"
        if self.result == "accrt_status_t":
            body = f"accsv_named(__func__, {body})"
        lines = [declared, f"{self.result} {name}({self.declared}) {{"]
        root = self.given is not None and not self.taken
        clears = [f"if ({p.name} != NULL) *{p.name} = {'0' if p.role == 'zero' else 'NULL'};" for p in function.parameters
                  if p.role in ("owned", "lent", "zero")]
        if root:
            lines += ["  bool wanted = false;", f"  const accrt_status_t checked = accsv_handle_begin(__func__, {ASKS[name]}, &wanted);",
                      "  if (checked != ACCRT_OK) {", *(f"    {c}" for c in clears), "    return checked;", "  }"]
        else:
            if name in ASKS:
                lines.append(f"  const bool wanted = accsv_handle_wanted({ASKS[name]});")
            if self.result == "void":
                lines += ["  if (!accsv_handles_on()) {", f"    {body};", "    return;", "  }"]
            else:
                lines += ["  if (!accsv_handles_on())", f"    return {body};"]
            checks = self.checks()
            lines.append(f"  {'const ' if len(checks) == 1 else ''}accrt_status_t checked = {checks[0]};")
            for check in checks[1:]:
                lines += ["  if (checked == ACCRT_OK)", f"    checked = {check};"]
            lines += ["  if (checked != ACCRT_OK) {", *(f"    {c}" for c in clears), f"    {self.refused()}", "  }"]
        source = "NULL" if root else self.taken[0].name
        if self.given is not None:
            gift = "DUE" if name == DUE else "OWNED" if self.given.role == "owned" else "LENT"
            condition = "wanted && " if root else ""
            if name in ASKS and not root:
                source = f"wanted ? NULL : {source}"
            lines += [f"  const accrt_status_t status = {body};", f"  if ({condition}status == ACCRT_OK)",
                      f'    accsv_handle_give(__func__, "{ABOVE[self.given.type]}", *{self.given.name}, {source}, ACCSV_HANDLE_{gift});',
                      "  return status;"]
        elif function.lends and self.is_own(function.lends) and not name.endswith("_retain"):
            lines += [f"  {self.result} lent = {body};",
                      f'  accsv_handle_give(__func__, "{ABOVE[function.lends]}", lent, {source}, ACCSV_HANDLE_LENT);', "  return lent;"]
        elif name in ANSWERS:
            lines += [f"  const accrt_status_t state = {body};", "  if (state != ACCRT_OK && state != ACCRT_ERROR_CANCELLED)",
                      f"    accsv_handle_unanswered({source});", "  return state;"]
        else:
            lines.append(f"  {'' if self.result == 'void' else 'return '}{body};")
        return "\n".join(lines) + "\n}\n"


def above_entries(api, names: list[str], prefix: str, star) -> list[AboveEntry]:
    listed = [AboveEntry(api, f, prefix, star) for f in functions(api, names) if f.has_handles]
    return [e for e in listed if e.has_own]


def render_above_entries(api, names: list[str], prefix: str, folder: str, definition: str, header: str, star) -> str:
    text = ABOVE_HEAD
    for word, value in (("FOLDER", folder), ("DEF", definition), ("ALL", header)):
        text = text.replace(f"@{word}@", value)
    return text + "\n".join(e.render() for e in above_entries(api, names, prefix, star))


def render_above_bodies(api, names: list[str], prefix: str, folder: str, star) -> str:
    listed = [e.function.name for e in above_entries(api, names, prefix, star)]
    return (f"/* {folder}/bodies.h - renames the functions whose entry points are in {folder}/entries.c. Every source of the library\n"
            " * that defines one includes it before everything else. Generated by abi/gen.py: do not edit.\n */\n" +
            "".join(f"#pragma redefine_extname {n} {n.replace('accrt_', 'accrt_body_', 1)}\n" for n in listed))


#: The checks that the handles of a function belong together, if it takes two or more, structs
#: included.
MODEL = "a constraint of grammars: of the engine's model (one of the caller's functions: any)"
DEVICE, INSTANCE, REACH = "one device", "one instance", "one instance; memory that the device reaches"
TOGETHER = {
    "accrt_device_enable_peer": INSTANCE + "; then one driver", "accrt_buffer_create": "`options.stream` of the pool's device",
    "accrt_stream_free": INSTANCE + "; no other stream uses the buffer", "accrt_semaphore_wait_many": INSTANCE,
    "accrt_stream_wait": INSTANCE, "accrt_stream_signal": INSTANCE, "accrt_stream_copy": INSTANCE, "accrt_stream_copy_strided": INSTANCE,
    "accrt_stream_fill": REACH, "accrt_stream_read_file": INSTANCE, "accrt_stream_record": DEVICE,
    "accrt_stream_wait_event": "one device, or devices of one driver that has events of its own", "accrt_event_elapsed": DEVICE,
    "accrt_stream_launch": "the kernel of the stream's instance, for its device; arguments: " + REACH,
    "accrt_commands_dispatch": "the kernel of the list's instance, for its device; arguments: " + REACH,
    "accrt_commands_invoke": "the operator of the list's instance, for its device; arguments: " + REACH,
    "accrt_commands_copy": INSTANCE, "accrt_commands_fill": REACH, "accrt_stream_submit": "stream and list: one device; bindings: " + REACH,
    "accrt_stream_run": "stream and list: one device; bindings: " + REACH,
    "accrt_program_create": "device, bundle and weights: " + INSTANCE, "accrt_program_swap_weights": REACH,
    "accrt_program_swap_weights_within": REACH, "accrt_program_load_weights": INSTANCE, "accrt_program_load_weights_within": INSTANCE,
    "accrt_session_create": "stream and pool of the program's device",
    "accrt_session_clone": "stream and pool of the program's device", "accrt_session_bind_state": DEVICE,
    "accrt_call_set_tensor": REACH, "accrt_call_submit": INSTANCE, "accrt_launch_create": "the kernel of the device's instance, for it",
    "accrt_launch_set": REACH, "accrt_stream_launch_prepared": DEVICE, "accrt_adapter_load": INSTANCE,
    "accrt_session_set_adapter": "one program",
    "accrt_serve_program_memory": "the program's device", "accrt_serve_model_open_program": "the program's device",
    "accrt_serve_engine_submit": MODEL, "accrt_http_start": MODEL,
}


def handle_words(api, function: Function) -> list[str]:
    """The handles that a function takes, in a reader's notation: "options.stream",
    "bindings[].buffer"."""
    words = []
    for parameter in function.taken:
        array = "[]" if parameter.count else ""
        if parameter.role == "structs":
            words += [f"{parameter.name}{array}.{path}{'[]' if count else ''}" for path, _, count in handles_in(api, parameter.type)]
        else:
            words.append(parameter.name + array)
    return words


def render_together(api, names: list[str]) -> str:
    """For docs/hostile-input.md: every function that takes two handles, and the checks of them."""
    rows = ["| function | handles | belong together: what is checked |\n| --- | --- | --- |\n"]
    found = set()
    for function in functions(api, names):
        words = handle_words(api, function)
        if len(words) < 2 and not any("[]" in w for w in words):
            continue
        if function.name not in TOGETHER:
            raise SystemExit(f"abi/entries.py: TOGETHER does not say what {function.name} checks of {', '.join(words)}")
        found.add(function.name)
        rows.append(f"| `{function.name}` | {', '.join(f'`{w}`' for w in words)} | {TOGETHER[function.name]} |\n")
    if found != set(TOGETHER):
        raise SystemExit(f"abi/entries.py: TOGETHER has functions that do not take two handles: {', '.join(sorted(set(TOGETHER) - found))}")
    return "".join(rows)


# ---- tests/api_fuzz: a call of every function with random arguments ------------------------------

#: Types whose random arguments the fuzzer makes by functions make_NAME in
#: tests/api_fuzz/api_fuzz.c.
MADE_STRUCTS = ("binding", "binding_place", "buffer_options", "kernel_argument", "place", "program_options", "session_options", "tensor",
                "timepoint", "weight", "copy_region", "predecessors", "key", "memory_handle")
#: Functions that the fuzzer calls by its own functions call_NAME.
OWN_CALLS = ("accrt_instance_create", "accrt_instance_register_driver", "accrt_bundle_open_callbacks", "accrt_weights_open_callbacks",
             "accrt_kernel_pack_register", "accrt_dlpack_import", "accrt_dlpack_export", "accrt_dlpack_import_unversioned", "accrt_dlpack_export_unversioned", "accrt_semaphore_export_eventfd",
             "accrt_buffer_export", "accrt_buffer_import_handle", "accrt_get_api", "accrt_kernel_pack_load", "accrt_key_write",
             "accrt_bundle_open_memory", "accrt_weights_open_memory", "accrt_layout_dequantize", "accrt_layout_quantize",
             "accrt_layout_component_size", "accrt_kernel_module_load", "accrt_caps_parse", "accrt_bundle_sign", "accrt_bundle_encrypt",
             "accrt_bundle_decrypt", "accrt_bundle_check")
#: Functions that wait for work: the fuzzer signals everything first.
WAITS = ("accrt_stream_reset", "accrt_session_reset", "accrt_session_clone", "accrt_session_bind_state", "accrt_session_create",
         "accrt_call_run", "accrt_call_attempt", "accrt_call_submit", "accrt_call_plan", "accrt_program_swap_weights",
         "accrt_program_swap_weights_within", "accrt_session_warmup", "accrt_stream_native")


class FuzzCall:
    def __init__(self, api, name: str) -> None:
        self.api, self.function, self.before, self.after, self.values = api, Function(api, name), [], [], []
        raw = [p for p in self.function.declarations if self.is_raw(p)]
        self.has_raw = bool(raw) or any(q.role == "structs" and q.type in ("accrt_place", "accrt_binding_place", "accrt_binding",
                                                                         "accrt_kernel_argument") for q in self.function.parameters)
        for node, parameter in zip(self.function.declarations, self.function.parameters):
            self.values.append(self.value(node, parameter))

    @staticmethod
    def is_raw(node) -> bool:
        target = node.type.type if isinstance(node.type, c_ast.PtrDecl) else None
        inner = getattr(target, "type", None)
        if not isinstance(inner, c_ast.IdentifierType):
            return False
        name = " ".join(inner.names)
        return name == "void" or (name == "char" and "const" not in target.quals)

    def value(self, node, parameter) -> str:
        name, kind = node.name, node.type
        if isinstance(kind, c_ast.ArrayDecl):
            return "random_grid(f)"
        if isinstance(kind, c_ast.PtrDecl):
            return self.pointer(name, kind.type, parameter)
        type_name = " ".join(kind.type.names)
        if type_name.endswith("_fn_t"):
            return "NULL"
        if name == "timeout_ns":
            return "random_timeout(f)"
        if name == "fd":
            return "random_fd(f)"
        if name.endswith("count") or name == "capacity":
            return "random_below(f, 5)"
        if re.fullmatch(r"(argument|binding|symbol|weight|entry)_size_bytes", name):
            struct = {"argument": "kernel_argument", "binding": "binding", "symbol": "symbol_value", "weight": "weight", "entry": "pool_entry"}
            return f"random_element_size(f, sizeof(accrt_{struct[name.split('_')[0]]}_t))"
        if ("size" in name or "capacity" in name or "offset" in name) and self.has_raw:
            return f"({type_name})random_below(f, SCRATCH_BYTES / 8)"
        return f"({type_name})random_number(f)"

    def pointer(self, name: str, target, parameter) -> str:
        role = parameter.role
        if role in ("handle", "consumed"):
            taken = self.function.name.endswith("_release")
            self.before.append(f"accrt_{parameter.type}_t* {name} = {'take' if taken else 'pick'}(f, '{LETTERS[parameter.type]}');")
            if role == "consumed" and not taken:
                self.after.append(f"if (status == ACCRT_OK)\n    drop(f, '{LETTERS[parameter.type]}', {name});")
            return name
        if role in ("owned", "lent"):
            self.before.append(f"accrt_{parameter.type}_t* {name} = (void*)f;")
            self.after.append(f"given(f, status, '{LETTERS[parameter.type]}', {name}, {str(role == 'owned').lower()});")
            return f"&{name}"
        if role == "handles":
            return f"(accrt_{parameter.type}_t**)random_handles(f, '{LETTERS[parameter.type]}')"
        struct = struct_of(self.api, target)
        short = struct.removeprefix("accrt_") if struct else ""
        if struct and "const" in target.quals:
            if short in MADE_STRUCTS:
                return f"make_{short}(f)"
            return f"make_any(f, sizeof({struct}_t), {str(self.api.structs[struct].decls[0].name == 'struct_size').lower()})"
        if struct:
            return f"out_struct(f, sizeof({struct}_t))"
        if isinstance(target, c_ast.FuncDecl):
            return "note_nothing" if name == "notify" else "NULL"
        inner = getattr(target, "type", None)
        type_name = " ".join(inner.names) if isinstance(inner, c_ast.IdentifierType) else ""
        if type_name == "char" and "const" in target.quals:
            return "random_text(f)"
        if isinstance(target, c_ast.PtrDecl) and not name.startswith("out_"):
            return "random_texts(f)"
        if name == "user":
            return "NULL"
        return "scratch(f)"

    def render(self) -> str:
        function = self.function
        result = function.result.replace(" *", "*")
        head = f"static void call_{function.name}(fuzz_t* f) {{\n  (void)f;\n"
        if function.name in WAITS:
            head += "  settle(f);\n"
        call = f"{function.name}({', '.join(self.values)})"
        body = "".join(f"  {line}\n" for line in self.before)
        if result == "accrt_status_t":
            body += f"  const accrt_status_t status = {call};\n  note_status(f, status);\n" + "".join(f"  {line}\n" for line in self.after)
        elif function.name.endswith("_retain"):
            body += f"  given(f, ACCRT_OK, '{LETTERS[function.lends]}', {call}, true);\n"
        else:
            body += f"  {'(void)' if result != 'void' else ''}{call};\n"
        return head + body + "}\n"


def render_fuzz(api, names: list[str]) -> str:
    out = ["/* A call of each function of abi/api.def with random arguments. Generated by abi/gen.py: do not edit. */\n/* clang-format off */\n"]
    listed = [n for n in names if n in api.functions and not n.startswith("accrt_bundle_writer_")]
    out += [FuzzCall(api, n).render() for n in listed if n not in OWN_CALLS]
    out.append("static const struct {\n  const char* name;\n  void (*call)(fuzz_t* f);\n} calls[] = {\n")
    out += [f'    {{"{n}", call_{n}}},\n' for n in [*listed, "accrt_get_api"]]
    out.append("};\n")
    return "".join(out)
