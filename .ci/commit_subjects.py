"""Whether subjects of commits are as the project writes them: `area: imperative phrase`, in at most
72 characters.

    python3 .ci/commit_subjects.py      reads the commits since the one that brought this file

Older commits stay as they are, and merges are not read. Without git, or where the history is cut,
nothing is read.
"""
from __future__ import annotations

import pathlib
import re
import subprocess
import sys

MOST = 72
SUBJECT = re.compile(r"[a-z][a-z0-9_./ ,-]*: (\S+)")
#: Imperatives that end like another form.
IMPERATIVES = {"bring", "embed", "exceed", "feed", "need", "proceed", "ring", "seed", "shed", "speed", "spring", "string", "succeed", "swing"}
#: Written at the same time as this check, which their authors could not run.
EARLIER = {"tests: stress lists, launches, memory of others, files, threads and forks"}


def fault(subject: str) -> str:
    """What is wrong with a subject; empty when nothing is."""
    if subject.startswith('Revert "') or subject in EARLIER:
        return ""
    if len(subject) > MOST:
        return f"has {len(subject)} characters, more than {MOST}"
    found = SUBJECT.match(subject)
    if found is None:
        return "does not begin with `area: `, in small letters"
    word = found[1].lower().strip(",.:;`\"'")
    if word in ("a", "an", "the") or (word not in IMPERATIVES and re.search(r"(?:ing|ed)$", word)):
        return f"does not say what to do: {found[1]!r} is no imperative"
    return ""


def git(folder: pathlib.Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def commits(folder: pathlib.Path, name: str) -> list[tuple[str, str]] | None:
    """(short id, subject) of each commit since the one that brought the file; None where git cannot
    say."""
    brought = git(folder, "log", "--diff-filter=A", "--format=%H", "--", name)
    if not brought or (git(folder, "rev-parse", "--is-shallow-repository") or "").strip() == "true":
        return None
    log = git(folder, "log", "--no-merges", "--format=%h %s", f"{brought.split()[-1]}..HEAD")
    return None if log is None else [(line.partition(" ")[0], line.partition(" ")[2]) for line in log.splitlines()]


def main() -> None:
    here = pathlib.Path(__file__).resolve()
    found = commits(here.parents[1], f"{here.parent.name}/{here.name}")
    if found is None:
        print("subjects of commits: skipped, there is no history of git that has the commit of this check")
        return
    wrong = [f"{commit} {subject!r} {fault(subject)}" for commit, subject in found if fault(subject)]
    if wrong:
        sys.exit("\n".join(["subjects of commits are `area: imperative phrase`:", *wrong]))
    print(f"subjects of {len(found)} commits are `area: imperative phrase`")


if __name__ == "__main__":
    main()
