"""Comments name what exists: files, functions with their parentheses, and names of the C API.

Read are the comments of C sources and headers, of shell scripts and CMake files, and the comments
and docstrings of Python files.
"""
import ast
import functools
import pathlib
import re
import subprocess
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
C_ENDINGS = {".c", ".h", ".cu", ".cuh", ".def", ".inc"}

#: Files of others, and names that stand for any file.
FOREIGN_FILES = """cuda.h cuda_runtime.h stdint.h stddef.h stdio.h string.h math.h elf.h dlpack.h dlfcn.h cmocka.h
jit-reader.h gdb/jit-reader.h ggml.c ggml.h ggml-quants.c ggml-common.h gguf.py cublasLt.h cublas_v2.h nvrtc.h yaml.h zstd.h xxhash.h xxh3.h
threads.h time.h stdatomic.h driver_types.h cudaTypedefs.h""".split()

#: Names that examples in comments make up.
EXAMPLES = """tables.md double.cu accrt_double_ accrt_double_f32 accrt_X_t bench_NAME.py bench_NAME.c NAME_fuzz.c foo.c foo_test.c SOURCE.cu""".split()

#: Functions of C, Python and others that comments name with parentheses.
FOREIGN_FUNCTIONS = set("""abort atexit bool close cudaFree clone dlclose dlopen dlsym dup exec exit fclose float fork free fsync getenv int len
list main malloc memcpy memset mmap munmap open openat poll pread print pthread_atfork read readlink rename repr setattr
sigaction str super syscall tuple type unlink vfork write""".split())


#: Names with `_` of others (system calls, other projects), and those that comments make up for a
#: formula or an example.
FOREIGN_NAMES = set("""acq_rel clock_getcpuclockid compute_100f data_as dot_j double_kernel dx_j elf_bytes enable_thinking exit_group
landlock_create_ruleset landlock_restrict_self m_j manylinux_2_17_x86_64 manylinux_2_28 my_params output_1 rotate_half s_j sigabbrev_np
sum_j update_result_type_state""".split())


@functools.cache
def tracked() -> tuple[str, ...]:
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(line for line in out.splitlines() if (ROOT / line).is_file())


def split_c(text: str) -> tuple[str, list[tuple[int, str]]]:
    """The code without comments, and the comments with their lines."""
    comments, code, at = [], [], 0
    for match in re.finditer(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|/\*.*?\*/|//[^\n]*', text, re.S):
        if match[0][0] == "/":
            comments.append((text.count("\n", 0, match.start()) + 1, match[0]))
            code.append(text[at:match.start()] + " ")
            at = match.end()
    return "".join(code) + text[at:], comments


#: Strings, or a comment. (The module tokenize takes twenty times as long to find comments.)
PYTHON_TOKEN = re.compile(r'''"""(?:\\.|[^\\])*?"""|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(#[^\n]*)''', re.S)


def docstrings(body: list[ast.stmt], owner: ast.AST) -> Iterator[ast.Constant]:
    """Of a module, and of classes and functions wherever they stand. No expression has one."""
    if isinstance(owner, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(owner, clean=False):
        yield body[0].value
    for node in body:
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, part, None)
            if isinstance(inner, list):
                yield from docstrings(inner, node if part == "body" else ast.Pass())


def split_python(text: str) -> tuple[str, list[tuple[int, str]]]:
    comments, code, at, line, counted = [], [], 0, 1, 0
    for match in PYTHON_TOKEN.finditer(text):
        if match[1]:
            line += text.count("\n", counted, match.start())
            counted = match.start()
            comments.append((line, match[1]))
            code.append(text[at:match.start()])
            at = match.end()
    lines = ("".join(code) + text[at:]).splitlines()
    for where in docstrings((module := ast.parse(text)).body, module):
        comments.append((where.lineno, where.value))
        lines[where.lineno - 1:where.end_lineno] = [""] * (where.end_lineno - where.lineno + 1)
    return "\n".join(lines), comments


def is_hash(name: str) -> bool:
    """Whether comments begin with #, and it is no Python: shell scripts and CMake files."""
    return name.endswith((".sh", ".cmake", "CMakeLists.txt")) or name in ("dev", ".ci/run")


def split_hash(text: str) -> tuple[str, list[tuple[int, str]]]:
    """A comment is a # at the beginning of a line or after a blank, with a blank behind it and no
    quote open before it. Lines of comments that follow each other are one comment."""
    code, comments, going = [], [], False
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"""((?:[^'"#\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?<=\S)#)*?)(?:(?<=\s)|^)#[ !](.*)$""", line)
        code.append(match[1] if match else line)
        alone = match is not None and not match[1].strip()
        if match and alone and going:
            comments[-1] = (comments[-1][0], comments[-1][1] + "\n" + match[2])
        elif match:
            comments.append((number, match[2]))
        going = alone
    return "\n".join(code), comments


@functools.cache
def sources() -> dict[str, tuple[str, list[tuple[int, str]]]]:
    """Code and comments of each file but this one, which makes names up."""
    parts = {}
    for name in tracked():
        ending = pathlib.Path(name).suffix
        split = split_c if ending in C_ENDINGS else split_python if ending == ".py" else split_hash if is_hash(name) else None
        if split and name != "tests/python/test_comment_names.py":
            parts[name] = split((ROOT / name).read_text(errors="replace"))
    return parts


@functools.cache
def identifiers() -> frozenset[str]:
    """Of all code, comments left out, and of the build's own files."""
    words = set()
    for code, _ in sources().values():
        words.update(re.findall(r"[A-Za-z_]\w*", code))
    for name in tracked():
        if name.endswith((".map", ".toml", ".ptx", ".fish")):
            words.update(re.findall(r"[A-Za-z_]\w*", (ROOT / name).read_text(errors="replace")))
        if (match := re.fullmatch(r"bench/bench_(\w+)\.(?:py|c)", name)):
            words.add(match[1])  # ./dev bench NAME
    return frozenset(words)


@functools.cache
def endings() -> frozenset[str]:
    """Each tracked file and folder by all that its path can end in."""
    found = set()
    for name in tracked():
        parts = name.split("/")
        for last in range(1, len(parts) + 1):
            for first in range(last):
                found.add("/".join(parts[first:last]))
    return frozenset(found)


def missing(comment: str, own: str = "") -> list[str]:
    """What a comment names and nothing has; `own` is the name of its file."""
    comment = re.sub(r"https?://\S+", " ", re.sub(r"\n\s*(\* )?", " ", comment))
    gone = []
    for path in re.findall(r"(?<![\w/.*<{}%$-])((?:[\w.-]+/)*[\w-]+\.(?:c|h|cu|cuh|py|sh|def|md|inc))(?![\w/*{])", comment):
        path = path[2:] if path.startswith("./") else path
        if path not in endings() and path not in FOREIGN_FILES and path != pathlib.Path(own).name and "/tmp" not in path:
            gone.append(path)
    for name in re.findall(r"(?<![\w/.-])((?:accrt|ACCRT|accx|ACCX)_\w+)(?![\w*])", comment):
        stem = name.rstrip("_")
        if name not in identifiers() and not (name != stem and any(i.startswith(name) for i in identifiers())):
            gone.append(name)
    for name in re.findall(r"(?<![\w.>])([a-z_]\w{2,})\(\)", comment):
        if name not in identifiers() and name not in FOREIGN_FUNCTIONS:
            gone.append(name + "()")
    for name in re.findall(r"(?<![\w/.<{%$*-])([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?![\w*/.<{-]|\.\w|\(\))", comment):
        if name not in identifiers() and name not in FOREIGN_NAMES and not name.startswith(("accrt_", "accx_")):
            gone.append(name)
    return [name for name in gone if name.rpartition("/")[2] not in EXAMPLES]


def test_comments_name_what_exists():
    wrong = [f"{name}:{line}: {gone}" for name, (_, comments) in sources().items() for line, comment in comments
             for gone in missing(comment, name)]
    assert wrong == []


def test_a_gone_name_is_seen():
    assert missing("as runtime/core/gone.c does, see nothing_of_the_kind()") == ["runtime/core/gone.c", "nothing_of_the_kind()"]
    assert missing("accrt_gone_function and ACCRT_GONE_*, accrt_pool_*") == ["accrt_gone_function"]
    assert missing("docs/errors.md, base.h and accrt_pool_create()") == []
    assert missing("verify_nothing_of_it has done so, as accrt_pool_create and read_image do") == ["verify_nothing_of_it"]
    code, comments = split_hash("#!/bin/sh\n# see a.sh\n# and b.c\nx='# no' y=${#z} # the end\nset(A \"# no\")\n")
    assert [c for _, c in comments] == ["/bin/sh\nsee a.sh\nand b.c", "the end"] and "${#z}" in code and code.count("no") == 2
    code, comments = split_c('int a; /* one.c */ char* s = "/* no */"; // two.h\n')
    assert [c for _, c in comments] == ["/* one.c */", "// two.h"] and "no" in code and "one" not in code
