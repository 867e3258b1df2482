""".ci/commit_subjects.py accepts subjects of commits that say what to do, and refuses others."""
import importlib.util
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("commit_subjects", ROOT / ".ci/commit_subjects.py")
subjects = importlib.util.module_from_spec(spec)
spec.loader.exec_module(subjects)


@pytest.mark.parametrize("subject", ("cuda: align a macro's lines", "tests/python: embed the model", "serve, http: say what is missing",
                                     'Revert "whatever was there"', "docs: " + "x" * 66))
def test_what_is_accepted(subject):
    assert subjects.fault(subject) == ""


@pytest.mark.parametrize("subject, why", (
    ("docs: " + "x" * 67, "73 characters"), ("fix it", "begin with"), ("Docs: say more", "begin with"), ("docs:say more", "begin with"),
    ("docs: the engine on a GPU", "'the' is no imperative"), ("docs: A guide", "'A' is no imperative"),
    ("http: adding a header", "'adding'"), ("http: fixed a leak", "'fixed'")))
def test_what_is_refused(subject, why):
    assert why in subjects.fault(subject)


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_commits_before_the_check_are_left_alone(tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True, capture_output=True)

    def run():
        return subprocess.run(["python3", ".ci/commit_subjects.py"], cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/commit_subjects.py", tmp_path / ".ci")
    assert run().returncode == 0 and "skipped" in run().stdout
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "An old subject")
    git("add", ".ci")
    git("commit", "-q", "-m", "The check itself")
    assert "subjects of 0 commits" in run().stdout
    git("commit", "-q", "--allow-empty", "-m", "docs: say more")
    assert "subjects of 1 commits" in run().stdout
    git("commit", "-q", "--allow-empty", "-m", "docs: the new thing")
    assert run().returncode == 1 and "'docs: the new thing'" in run().stderr
