#!/usr/bin/env python3
"""Puts the pages of the documentation site into a folder, with a reference made from the public
headers.

    stage.py OUT_FOLDER      writes OUT_FOLDER/*.md and OUT_FOLDER/../mkdocs.yml

Links to pages stay links. Links to other files of the repository become plain text. A link to
nothing ends the run. It needs Python alone; `./dev docs` runs it before mkdocs.
"""
from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ["base", "instance", "memory", "stream", "commands", "tensor", "dlpack", "bundle", "program", "weights", "layout", "trust", "kernel", "counters",
           "write", "write/bundle_writer", "write/quantize", "write/rewrite", "serve", "http", "sys/driver"]
PYTHON = ["accrt.program", "accrt.session", "accrt.call", "accrt.adapter", "accrt.instance", "accrt.bundle", "accrt.tensor",
          "accrt.memory", "accrt.stream", "accrt.kernels", "accrt.weights", "accrt.layouts", "accrt.trust", "accrt.budget",
          "accrt.sandbox", "accrt.errors", "accrt.bundle_writer", "accrt.compiler", "accrt.models", "accrt.from_torch",
          "accrt.from_onnx", "accrt.torch", "accrt.jax", "accrt.llm", "accrt.serve"]


def fail(message: str) -> None:
    sys.exit(f"docs/site/stage.py: {message}")


def pages() -> dict[pathlib.Path, str]:
    """Documents of the repository, and their names on the site."""
    found = {p: str(p.relative_to(ROOT / "docs")) for p in sorted((ROOT / "docs").rglob("*.md"))}
    return {ROOT / "README.md": "index.md", ROOT / "CHANGELOG.md": "changelog.md", **found}


def relink(text: str, source: pathlib.Path, names: dict[pathlib.Path, str]) -> str:
    """Links as they are on the site. Code blocks stay as they are."""

    def link(match: re.Match) -> str:
        words, target = match[1], match[2]
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        path, _, anchor = target.partition("#")
        file = pathlib.Path(os.path.normpath(source.parent / path))
        if file.is_dir() and file / "README.md" in names:
            file = file / "README.md"
        if file in names:
            where = os.path.relpath(names[file], os.path.dirname(names[source]) or ".")
            return f"[{words}]({where}{'#' + anchor if anchor else ''})"
        if not file.exists():
            fail(f"{source.relative_to(ROOT)}: the link to {target} leads nowhere")
        return match[0] if file.suffix == ".svg" else words

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(p if p.startswith("```") else re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, p) for p in parts)


# ---- The C reference -----------------------------------------------------------------------------


def paragraphs(comment: str) -> list[str]:
    """Of a comment without its delimiters: blank lines and @-words begin a new one."""
    lines = [re.sub(r"^\s*\*( |$)", "", line).rstrip() for line in comment.strip().splitlines()]
    out: list[str] = [""]
    indented = False
    for line in lines:
        word = line.strip()
        begins, indented = indented and not line.startswith(" "), line.startswith(" ")
        if not word or begins:
            out.append(word)
        elif word.startswith(("@", "- ")) or re.match(r"\d\. ", word):
            out.append(word)
        else:
            out[-1] = (out[-1] + " " + word).strip()
    return [p for p in out if p]


def markdown(text: str, where: dict[str, str], page: str) -> str:
    """Plain text of a comment as Markdown: names of the API are code, and links where they have a
    place."""

    def word(match: re.Match) -> str:
        name = match[0]
        if name.startswith("`") or name not in where:
            return name if name.startswith("`") else f"`{name}`"
        target = os.path.relpath(where[name], os.path.dirname(page))
        return f"[`{name}`]({target}#{name})"

    pieces = re.split(r"(`[^`]*`|\b(?:accrt|ACCRT)_\w+\*?)", text)
    return "".join(re.sub(r"^`?([\w*]+)`?$", lambda m: word(re.match(r".*", m[1])), p) if re.match(r"`?(accrt|ACCRT)_\w+\*?`?$", p)
                   else p if p.startswith("`") else re.sub(r"([*_<\[\]|])", r"\\\1", p) for p in pieces)


def code_after(text: str, at: int) -> str:
    """The declaration that begins at `at`: a struct to its name, a macro to its last line, anything
    else to its semicolon."""
    rest = text[at:]
    if rest.startswith("typedef struct") and "{" in rest.split("\n")[0]:
        return rest[:re.search(r"^\}.*?;", rest, re.M).end()]
    if rest.startswith("#define"):
        return rest[:re.search(r"[^\\]$", rest, re.M).end()]
    return rest[:rest.index(";") + 1]


def declarations(header: str) -> list[tuple[str, str, str]]:
    """Comment, code and name of each declaration that has a comment before it, in order."""
    text = (ROOT / f"include/accrt/{header}.h").read_text()
    found = []
    for match in re.finditer(r"^/\*\*(?!<)((?:(?!\*/).)*)\*/\n(?=typedef|ACCRT_API|#define)", text, re.M | re.S):
        code = code_after(text, match.end())
        name = re.search(r"^\}\s*(\w+);", code, re.M) or re.match(r"#define (\w+)", code) or re.search(r"\(\*(accrt_\w+)\)\(", code) \
            or re.search(r"\b(accrt_\w+)\(", code) or re.search(r"(\w+);$", code)
        found.append((match[1], code, name[1]))
    return found


def constants(header: str) -> str:
    """Macros with a value, one below the other, with their comments."""
    text = (ROOT / f"include/accrt/{header}.h").read_text()
    found = re.findall(r"^(?:/\*\*?(?:(?!\*/).)*\*/\n)?#define ACCRT_\w+ (?:[^\n]*\\\n)*[^\n]+", text, re.M | re.S)
    return "\n".join(f for f in found if not re.search(r"_INIT |_INIT\n", f) and not f.endswith("{"))


def head(header: str) -> list[str]:
    text = (ROOT / f"include/accrt/{header}.h").read_text()
    comment = text[3:text.index("*/")]
    comment = re.sub(r"^\s*accrt/[\w/]+\.h - ", "", comment)
    return paragraphs(comment)


def reference(header: str, where: dict[str, str]) -> str:
    page = where_page(header)
    summary, *more = head(header)
    out = [f"# accrt/{header}.h", "", markdown(summary[0].upper() + summary[1:], where, page), ""]
    for paragraph in more:
        out += [markdown(paragraph, where, page), ""]
    out += ["```c", f'#include "accrt/{header}.h"', "```", ""]
    for comment, code, name in declarations(header):
        out += [f"## {name} {{ #{name} }}", ""]
        for paragraph in paragraphs(comment):
            since = re.search(r"\s*Since:? (0\.\d+)( by this name)?\.?$", paragraph)
            paragraph = paragraph[:since.start()] if since else paragraph
            if paragraph.startswith("@param "):
                names, _, rest = re.match(r"@param (\w+(?:,\s*\w+)*)( )(.*)", paragraph, re.S).groups()
                out += [f"- **{names}**: {markdown(rest, where, page)}"]
            elif paragraph.startswith("@return "):
                out += ["", "**Returns** " + markdown(paragraph[8:], where, page)]
            elif paragraph:
                out += [markdown(paragraph, where, page), ""]
            if since:
                out += ["", f"*Since {since[1]}.*"]
        out += ["", "```c", code.replace("ACCRT_API ", ""), "```", ""]
    if constants(header):
        out += ["## Constants", "", "```c", constants(header), "```", ""]
    return "\n".join(out) + "\n"


def where_page(header: str) -> str:
    return f"reference/c/{header.replace('/', '-')}.md"


def main() -> None:
    out = pathlib.Path(sys.argv[1]).resolve()
    shutil.rmtree(out, ignore_errors=True)
    names = pages()
    for source, name in names.items():
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(relink(source.read_text(), source, names))
    for picture in (ROOT / "docs").rglob("*.svg"):
        shutil.copyfile(picture, out / picture.relative_to(ROOT / "docs"))
    where = {name: where_page(header) for header in HEADERS for _, _, name in declarations(header) if name}
    for header in HEADERS:
        target = out / where_page(header)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(reference(header, where))
    for module in PYTHON:
        target = out / f"reference/python/{module}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"# {module}\n\n::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n")
    config = (ROOT / "docs/site/mkdocs.yml").read_text()

    def listed(mark: str, entries: list[str]) -> None:
        nonlocal config
        line = re.search(rf"^( *)- (.*): {mark}$\n?", config, re.M)
        inner = "".join(f"\n{line[1]}    - {e}" for e in entries)
        config = config.replace(line[0], f"{line[1]}- {line[2]}:{inner}\n" if entries else "")

    listed("REFERENCE_C", [f"accrt/{h}.h: {where_page(h)}" for h in HEADERS])
    listed("REFERENCE_PYTHON", [f"{m}: reference/python/{m}.md" for m in PYTHON])
    listed("DECISIONS", [n for n in names.values() if n.startswith("decisions/")])
    # What the navigation does not name yet comes at its end.
    listed("MORE", [n for n in names.values() if not re.search(rf"[ :]{re.escape(n)}$", config, re.M)])
    config = config.replace("../../build/docs-src", str(out)).replace("../../build/site", str(out.parent / "site"))
    (out.parent / "mkdocs.yml").write_text(config.replace("../../python", str(ROOT / "python")))
    print(f"{len(names)} documents, {len(where)} names of the C API, {len(PYTHON)} Python modules")


if __name__ == "__main__":
    main()
