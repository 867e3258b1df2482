"""Documents and public headers in plain words: links and terms exist, and rewritten prose is short
of 100 columns."""
import ast
import io
import pathlib
import re
import subprocess
import tokenize

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: Documents in plain words. Add a document when it has been rewritten; none leaves.
REWRITTEN = ["README.md", *(f"docs/{name}.md" for name in """accx-format architecture bundle-writer compiler concepts contract cuda
    custom-kernels dependencies driver-guide driver-obligations errors from-onnx from-torch fuzzing glossary hostile-input jax kernel-abi layouts
    missing-operations models options programs python-guide quick-start server serving serving-model soak support-matrix text-form
    tool torch torch-to-c trust weights""".split()),
             *sorted(str(p.relative_to(ROOT)) for f in ("guide", "decisions", "benchmarks") for p in (ROOT / "docs" / f).rglob("*.md"))]

#: Words of the C API: each has an entry of its own.
TERMS = """adapter, arena, asset, binding, bucket, budget, buffer, bundle, call, chunk, command, command list, component,
constant, device, digest, dispatch, driver, event, floor, function, handle, image, instance, kernel, kernel pack, launch,
layout, location, operator, patch, plan, pool, prepare function, program, queue, root, semaphore, session, shard, signature,
source, staging, state, stream, submission, symbol, timepoint, tree, variant, view, weight, weight pack"""

#: Phrases of the private vocabulary that rewritten documents have lost.
PRIVATE = ["nobody has to hear", "has become of it", "comes to light", "is told", "are told", "makes the driver tell", "at its door"]


#: Public headers. api.h is generated.
HEADERS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "include").rglob("*.h") if p.name != "api.h")

#: Words that comments of public headers have lost: the glossary has others for them.
LOST = ["borrowed", "nobody", "somebody", "whoever", "is told", "are told", "comes to light", "is asked", "are asked", "pulled",
        "passed over", "alone may"]


def header_comments(header: str) -> str:
    return " ".join(re.findall(r"/\*(.*?)\*/", (ROOT / header).read_text(), re.S))


def prose(document: str) -> list[tuple[int, str]]:
    """Lines with their numbers, without code, tables and pictures (which cannot be broken) and what
    is generated."""
    text = (ROOT / document).read_text()
    blank = lambda match: "\n" * match[0].count("\n")  # noqa: E731
    text = re.sub(r"^```.*?^```$", blank, text, flags=re.M | re.S)
    text = re.sub(r"^<!-- (\w+): written by .*?^<!-- \1: end -->$", blank, text, flags=re.M | re.S)
    return [(n, line) for n, line in enumerate(text.splitlines(), 1) if not line.startswith(("|", "!["))]


def anchors(document: pathlib.Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(document: pathlib.Path) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = document.parent / name if name else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


def entries() -> set[str]:
    """The bold words that begin a row of the glossary; `a, b` is two."""
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs/glossary.md").read_text(), re.M)
    return {re.sub(r" \(.*\)", "", word.strip()) for row in rows for word in row.split(",")}


@pytest.mark.parametrize("document", [*REWRITTEN, "CHANGELOG.md"])
def test_lines_are_short(document):
    assert [(n, len(line)) for n, line in prose(document) if len(line) > 100] == []


#: The sections of the changelog by version.
CHANGES = {text.split()[0]: text for text in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1:]}

#: What a section names that only the project's own engineers know.
INSIDE = r"""\b[Mm]utants?\b|\b[Rr]ule \d+|\b[Bb]oth writers\b|tests/\w+|\bVerifier:|\bwriters? hold\b|\b(?:no|any|some)body\b|\b[Ww]hoever\b
|\bis told\b|\bare told\b|\bcomes? to light\b|\bpassed over\b|`\./dev check`|^Development:""".replace("\n", "")


@pytest.mark.parametrize("version", CHANGES)
def test_changes_are_for_users(version):
    """No section names tests, numbers of rules and other things inside, or says a thing twice."""
    section = CHANGES[version]
    assert re.findall(INSIDE, section, re.M) == []
    heads = re.findall(r"^### .*$", section, re.M) + re.findall(r"^- .*$", section, re.M)
    assert len(heads) == len(set(heads)) >= 5


def test_every_version_has_its_changes():
    assert list(CHANGES)[-4:] == ["0.4.0", "0.3.0", "0.2.0", "0.1.0"]


@pytest.mark.parametrize("document", REWRITTEN)
def test_words_are_plain(document):
    text = " ".join(line for _, line in prose(document))
    assert [p for p in PRIVATE if p in text] == []
    if not document.startswith(("docs/decisions/", "docs/benchmarks/")):
        assert re.findall(r"(?i)\b(?:nobody|somebody|anybody|whoever)\b", (ROOT / document).read_text()) == []
        assert re.findall(r"(?i)\b(?:cards?|pace of late|steps of late|requests of late)\b", text) == []


def test_a_kernel_is_code_that_a_dispatch_runs():
    """The kernel of the operating system is Linux: both stand on the pages on trust."""
    for document in ("docs/trust.md", "docs/hostile-input.md"):
        text = " ".join((ROOT / document).read_text().split())
        assert re.findall(r"(?:only|parts of|holes in) the kernel\b(?!'s (?:author|size))|the kernel ends\b", text) == [], document


@pytest.mark.parametrize("header", HEADERS)
def test_headers_are_short_and_plain(header):
    text = header_comments(header)
    lines = (ROOT / header).read_text().splitlines()
    assert [(n, len(line)) for n, line in enumerate(lines, 1) if len(line) > 100] == []
    assert [w for w in LOST if re.search(rf"\b{w}\b", re.sub(r"\n\s*\*? *", " ", text))] == []


def wide_comments(text: str) -> list[int]:
    """The lines of C on which a comment reaches beyond 100 columns."""
    wide = []
    for match in re.finditer(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|/\*.*?\*/|//[^\n]*', text, re.S):
        start = text.rfind("\n", 0, match.start()) + 1
        if match[0][0] == "/":
            first = text.count("\n", 0, start) + 1
            wide += [n for n, line in enumerate(text[start:match.end()].split("\n"), first) if len(line) > 100]
    return wide


def test_a_wide_comment_is_seen():
    far = " " * 99
    assert wide_comments(f'int a; /* b */{far}\\\n"/* {far} */";\n/* c\n{far}d */ int e;\n// {far}f\n') == [4, 5]


@pytest.mark.parametrize("folder", ["runtime", "loader", "format", "write", "serve", "abi", "tools", "bench", "packs", "examples", "python"])
def test_comments_of_sources_are_short(folder):
    sources = [p for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".c", ".h", ".cu", ".cuh")]
    written = {p: text for p in sources if "generated by" not in "\n".join((text := p.read_text()).splitlines()[:5]).lower()}
    wide = {str(p.relative_to(ROOT)): wide_comments(text) for p, text in written.items()}
    assert {name: lines for name, lines in wide.items() if lines} == {}
    assert written


#: A comment that tools read, with its reason: it stays on its line.
DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma|shellcheck|!)")


def wide_python(text: str) -> list[int]:
    """The lines of Python on which a comment or a docstring reaches beyond 100 columns. Not read:
    comments that tools read, and what is indented in a docstring (an example or a table)."""
    lines = text.split("\n")
    found = [t.start[0] for t in tokenize.generate_tokens(io.StringIO(text).readline)
             if t.type == tokenize.COMMENT and t.end[1] > 100 and not DIRECTIVE.match(t.string)]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node, clean=False):
            where = node.body[0].value
            example = re.compile(rf"\s{{{where.col_offset + 1},}}")
            found += [n for n in range(where.lineno, where.end_lineno + 1) if len(lines[n - 1]) > 100 and not example.match(lines[n - 1])]
    return sorted(found)


def wide_shell(text: str) -> list[int]:
    return [n for n, line in enumerate(text.split("\n"), 1) if len(line) > 100 and re.match(r"""(?:[^'"#]|'[^']*'|"[^"]*"|(?<=\S)#)*(?<!\S)#\s""", line)]


def test_a_wide_comment_of_python_or_shell_is_seen():
    far = " " * 100
    python = f'"""One\n{far}line."""\nx = 1  # a{far}b\ny = "# {far}"\n\n\ndef f():\n    """a {far}\n        b{far}\n    c{far}d"""  # noqa: X{far}\n'
    assert wide_python(python) == [3, 8, 10]
    assert wide_shell(f"# a{far}b\nx='# {far}'\ny=${{#z}} # {far}c\n") == [1, 3]


def test_comments_of_scripts_are_short():
    """All but the frozen reader."""
    out = subprocess.run(["git", "ls-files", "*.py", "*.pyi", "*.sh", "*.cmake", "*CMakeLists.txt", "dev", ".ci/run",
                          ":!tests/golden/reader_0_1.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    written = {name: text for name in out.stdout.split() if "generated by" not in "\n".join((text := (ROOT / name).read_text()).splitlines()[:5]).lower()}
    wide = {name: (wide_python if name.endswith((".py", ".pyi")) else wide_shell)(text) for name, text in written.items()}
    assert {name: lines for name, lines in wide.items() if lines} == {} and len(written) > 400


#: Parts of names that product sources have lost. The glossary has the field's words for them.
LOST_PARTS = "door gate hear heard tell tells told turn turns unheard".split()


def lost_names(text: str, lost: list[str]) -> set[str]:
    code = re.sub(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', " ", text, flags=re.S)
    return {name for name in re.findall(r"[A-Za-z_]\w*", code) if set(name.lower().split("_")) & set(lost)}


def test_comments_use_words_of_the_field():
    private = re.compile(r"\b(doors?|gates?|hears?|heard|told)\b")
    comments = {str(p.relative_to(ROOT)): " ".join(re.findall(r"/\*.*?\*/", text, re.S)) for p, text in product_sources().items()}
    assert {name: private.findall(text) for name, text in comments.items() if private.search(text)} == {}


#: Words that product sources of every language have lost: in comments, names and messages.
LOST_EVERYWHERE = re.compile(r"(?<![a-z])(?:told|heard|nobody|somebody|anybody|whoever|front door)(?![a-z])", re.I)


def test_sources_name_who_acts():
    """Not `whoever reads it`, but `a thread that reads it`."""
    files = {p: text for p, text in product_sources().items() if p.suffix != ".inc"}
    files.update({p: p.read_text() for f in ("packs", "python/accrt", "python/native", "python/_build", ".ci") for p in sorted((ROOT / f).rglob("*"))
                  if p.suffix in (".c", ".h", ".cu", ".cuh", ".py", ".pyi", ".sh") or p.name == "run"})
    files[ROOT / "dev"] = (ROOT / "dev").read_text()
    found = {str(p.relative_to(ROOT)): LOST_EVERYWHERE.findall(text) for p, text in files.items()}
    assert {name: words for name, words in found.items() if words} == {} and len(files) > 500


def test_a_word_for_anyone_is_seen():
    assert LOST_EVERYWHERE.findall("/* Nobody */ self._told = Told(is_told, toldest) # front door") == ["Nobody", "told", "Told", "told", "front door"]


def product_sources() -> dict[pathlib.Path, str]:
    folders = ("abi", "format", "loader", "runtime", "serve", "tools", "write")
    files = [p for folder in folders for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".c", ".h", ".def", ".inc")]
    return {p: p.read_text() for p in files if not re.search(r"test", p.name)}


def test_names_use_words_of_the_field():
    lost = {str(p.relative_to(ROOT)): lost_names(text, LOST_PARTS) for p, text in product_sources().items()}
    assert {name: names for name, names in lost.items() if names} == {}


#: Names with `slot` below programs: the public ones that the glossary lists, and those of ELF.
SLOTS = "STAGING_SLOT staging_slot_bytes OWN_JUMP_SLOT R_X86_64_JUMP_SLOT R_AARCH64_JUMP_SLOT accrt_bundle_writer_slot bundle_writer_slot".split()


def test_a_slot_is_an_entry_of_a_binding_table():
    below = {str(p.relative_to(ROOT)): text for p, text in product_sources().items()}
    below = {name: text for name, text in below.items() if re.match(r"abi/|runtime/(core|memory|drivers)/", name)}
    wrong = {name: lost_names(text, ["slot", "slots"]) - set(SLOTS) for name, text in below.items() if not name.endswith("struct_fields.inc")}
    assert {name: names for name, names in wrong.items() if names} == {}


def test_a_lost_word_is_seen():
    assert lost_names('int stream_GATE; /* gate */ char turned[] = "gate"; op->told', ["gate", "turn", "told"]) == {"stream_GATE", "told"}


def test_every_public_header_is_read():
    assert len(HEADERS) >= 17 and "include/accrt/sys/driver.h" in HEADERS


def test_statuses_read_the_same_in_header_and_document():
    """docs/errors.md adds links and code marks to the words of base.h."""
    header = dict(re.findall(r'X\((\w+), \d+,[\s\\]*"([^"]+)"\)', (ROOT / "include/accrt/base.h").read_text()))
    rows = re.findall(r"^\| \d+ \| `ACCRT_ERROR_(\w+)` \| (.+?) \|$", (ROOT / "docs/errors.md").read_text(), re.M)
    plain = {name: re.sub(r" \(\[[^\]]*\]\([^)]*\)\)|`", "", text) for name, text in rows}
    assert len(header) == 29 and plain == header


@pytest.mark.parametrize("document", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))])
def test_links_and_anchors(document):
    assert broken_links(ROOT / document) == []


def test_a_broken_anchor_is_seen(tmp_path):
    (tmp_path / "a.md").write_text("# One thing, done\n[x](#one-thing-done) [y](#other) [z](b.md) [w](a.md#one)\n")
    assert broken_links(tmp_path / "a.md") == ["#other", "b.md", "a.md#one"]


def test_glossary_has_every_term_and_is_linked():
    wanted = {term.strip() for term in TERMS.replace("\n", " ").split(",")}
    assert wanted - entries() == set()
    assert "docs/glossary.md" in (ROOT / "README.md").read_text()
    assert "(glossary.md)" in (ROOT / "docs/concepts.md").read_text()


def test_glossary_has_every_handle():
    """A handle's name is a word that users read: each kind has an entry."""
    names = set(re.findall(r"^\| `accrt_(\w+)_t` \|", (ROOT / "docs/concepts.md").read_text(), re.M))
    names = {re.sub("^(serve|http)_", "", name) for name in names}
    other = {"commands": "command list", "weights": "source", "kernel_pack": "kernel pack", "calls": "calls of tools"}
    assert len(names) >= 24 and {other.get(n, n) for n in names} - entries() == set()


@pytest.mark.parametrize("document", REWRITTEN)
def test_pip_runs_in_a_venv(document):
    """Debian 12 and its successors refuse `pip install` into the system's Python. The package is in
    no registry: it is built from the clone, or a wheel's file is installed."""
    text = (ROOT / document).read_text()
    for block in re.findall(r"^```[\w ]*\n(.*?)^```$", text, re.M | re.S):
        assert "pip install" not in block or "-m venv" in block
    assert re.findall(r"pip install (?:-\S+ )*['\"]?accrt\b", text) == []


def test_every_document_is_read():
    assert sorted(REWRITTEN) == sorted({"README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))})


#: Where the names of a decision are looked for.
SOURCES = [p for folder in ("abi", "bench", "cmake", "format", "include", "loader", "python/accrt", "runtime", "write")
           for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".c", ".h", ".cuh", ".py", ".cmake", ".sh")]
#: Pages that tell of earlier versions name what is gone.
DECISIONS = [d for d in REWRITTEN if d.startswith("docs/decisions/") and "every-hand" not in d and "attack" not in d]


@pytest.fixture(scope="session")
def words_of_sources() -> set[str]:
    return {word for p in SOURCES for word in re.findall(r"\w+", p.read_text(errors="replace"))}


@pytest.mark.parametrize("document", DECISIONS)
def test_decisions_name_what_exists(document, words_of_sources):
    quoted = re.findall(r"`([^`\n]+)`", (ROOT / document).read_text())
    names = [q for q in quoted if re.fullmatch(r"[A-Za-z]\w*_\w+", q)]
    assert [n for n in names if n not in words_of_sources] == []


@pytest.mark.parametrize("document", DECISIONS)
def test_decisions_begin_with_the_decision(document):
    """A title, then one sentence that stands alone."""
    title, first = [p for p in (ROOT / document).read_text().split("\n\n") if p][:2]
    assert title.startswith("# ") and first.endswith(".") and not re.search(r"[.!?] ", " ".join(first.split()))
