"""The documentation: installed with the library as headers cite it, and staged for the site with
every function of the API.

That mkdocs builds the site without a broken link, and that a browser finds a function in it, is
`./dev check docs`.
"""
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import accx_tool

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_stage():
    spec = importlib.util.spec_from_file_location("stage", ROOT / "docs/site/stage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stage = load_stage()


def api() -> set[str]:
    text = (ROOT / "abi/api.def").read_text() + (ROOT / "abi/write.def").read_text() + (ROOT / "abi/serve.def").read_text() + (ROOT / "abi/http.def").read_text()
    return set(re.findall(r"^ACCRT_FUNCTION\((\w+),", text, re.M)) - {"accrt_get_api", "accrt_write_get_api", "accrt_serve_get_api"}


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "src"
    subprocess.run([sys.executable, ROOT / "docs/site/stage.py", out], check=True, capture_output=True)
    return out


def test_every_function_has_its_place(staged):
    text = "\n".join(p.read_text() for p in (staged / "reference/c").glob("*.md"))
    assert api() - set(re.findall(r"^## \w+ \{ #(\w+) \}$", text, re.M)) == set()
    assert not re.findall(r"^## *\{", text, re.M)


def test_statuses_and_parameters_are_on_the_page(staged):
    text = (staged / "reference/c/stream.md").read_text()
    part = re.search(r"^## accrt_stream_synchronize .*?(?=^## )", text, re.M | re.S)[0]
    assert "**policy**" in part and "`ACCRT_ERROR_TIMEOUT`" in part and "*Since 0.1.*" in part
    assert "accrt_status_t accrt_stream_synchronize(accrt_stream_t* stream, uint64_t timeout_ns," in part


def test_every_public_header_and_document_is_in_the_navigation(staged):
    headers = {str(p.relative_to(ROOT / "include/accrt"))[:-2] for p in (ROOT / "include/accrt").rglob("*.h")}
    assert headers - {"accrt", "api", "write/api", "serve/api"} == set(stage.HEADERS)
    navigation = (staged.parent / "mkdocs.yml").read_text()
    pages = [str(p.relative_to(staged)) for p in staged.rglob("*.md")]
    assert [p for p in pages if not re.search(rf"[ :]{re.escape(p)}$", navigation, re.M)] == []


def test_a_link_to_nothing_ends_the_run():
    names = stage.pages()
    here = ROOT / "docs/errors.md"
    assert stage.relink("[a](trust.md#x) [b](../README.md) [c](../dev)", here, names) == "[a](trust.md#x) [b](index.md) c"
    with pytest.raises(SystemExit, match="leads nowhere"):
        stage.relink("[a](gone.md)", here, names)


def broken_links(documents: pathlib.Path) -> list[tuple[str, str]]:
    """Links to files and folders that are not below `documents`, or not there."""
    broken = []
    for document in sorted(documents.rglob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
            place = (document.parent / target.partition("#")[0]).resolve()
            if "://" not in target and not (place.exists() and place.is_relative_to(documents.resolve())):
                broken.append((str(document.relative_to(documents)), target))
    return broken


def test_the_wheel_has_what_its_headers_cite(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "python/_build"))
    import accrt_build
    members = {name: path for name, path, _ in accrt_build.wheel_files({}, {})}
    headers = [path for name, path in members.items() if name.startswith("accrt/include/") and name.endswith(".h")]
    cited = {c for h in headers for c in re.findall(r"\bdocs/[\w./-]+\.md", h.read_text())}
    documents = {name.partition("/share/doc/accrt/")[2]: path for name, path in members.items() if "/share/doc/accrt/" in name}
    assert len(cited) >= 12 and cited - set(documents) == set()
    for name, path in documents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(path.read_bytes())
    assert broken_links(tmp_path) == [] and len(list(tmp_path.rglob("*.md"))) > 50


def test_headers_cite_what_is_installed(tmp_path):
    subprocess.run(["cmake", "--install", accx_tool.BUILD, "--prefix", tmp_path], check=True, capture_output=True)
    (documents,) = tmp_path.glob("share/doc/accrt")
    cited = {c for h in (tmp_path / "include").rglob("*.h") for c in re.findall(r"\bdocs/[\w./-]+\.md", h.read_text())}
    assert len(cited) >= 12 and [c for c in sorted(cited) if not (documents / c).is_file()] == []
    assert (documents / "docs/guide/semaphores.md").is_file() and (documents / "examples/guide/semaphores.c").is_file()
    assert broken_links(documents) == []


def test_a_broken_link_is_seen(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "beside.md").write_text("")
    (tmp_path / "in/a.md").write_text("[a](a.md#x) [b](b.md) [c](../beside.md) [d](https://example.org)")
    assert broken_links(tmp_path / "in") == [("a.md", "b.md"), ("a.md", "../beside.md")]


def test_every_public_module_is_in_the_reference():
    """The modules that the documents import, and the packages of the Python package but the second
    reader."""
    package = ROOT / "python/accrt"
    packages = {f"accrt.{p.parent.name}" for p in package.glob("*/__init__.py") if not p.parent.name.startswith("_")} - {"accrt.bundle_reader"}
    text = "\n".join(p.read_text() for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])
    imported = {f"accrt.{name}" for name in re.findall(r"^(?:from|import) accrt\.(\w+)", text, re.M) if not name.startswith("_")}
    assert len(packages) >= 6 and (packages | imported) - {"accrt.bundle_reader"} - set(stage.PYTHON) == set()
    missing = [m for m in stage.PYTHON if not list(package.parent.glob(m.replace(".", "/") + ".py")) + list(package.parent.glob(m.replace(".", "/") + "/__init__.py"))]
    assert missing == []
