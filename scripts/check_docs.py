"""Check the docs against what is there: links, anchors, command lines, names of tests; and how they read.

`python scripts/check_docs.py [PAGE ...]` prints what is wrong, and ends with 1 where anything is. A command line is a
line of a code block, or a code span, that starts with `matex-tf`, `scripts/…`, `python`, `pytest` or `pip`, also after
variables and after `mpirun` or `srun`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import check_prose  # noqa: E402
from doc_commands import FLAG, commands, is_command, known_flags, pytest_flags, wrong_command  # noqa: E402

#: Files that docs/contributing.md writes; and files that scripts/docs makes.
EXAMPLES = {
    "matex_tf/core/transport/files.py",
    "matex_tf/strategies/clipped.py",
    "patches/saving/summary.py",
    "patches/steps/rows_of_steps.py",
    "readers/formats/flt.py",
}
GENERATED = {"docs/images/rooms.svg", "docs/images/patches.svg"}

#: Flags of mpirun, sbatch, docker, pytest and Horovod's launcher.
FOREIGN = (
    *("--allow-run-as-root", "--autotune", "--cycle-time-ms", "--gloo", "--host-discovery-script", "--log-level"),
    *("--max-np", "--mca", "--mpi", "--no-kill", "--oversubscribe", "--prefix", "--prtemca", "--requeue", "--signal"),
    *("--shm-size", "--with-ft", "--junitxml", "--flag"),  # the last stands for any
)

FENCE = re.compile(r"^( *)(`{3,})(\S*)\s*$")
LINK = re.compile(r"(?<!`)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def pages() -> list[Path]:
    """All pages of the docs."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def without_code(text: str) -> str:
    """A page with the lines of its code blocks emptied, and their fences."""
    lines, fence = [], ""
    for line in text.splitlines():
        match = FENCE.match(line)
        if match and not fence:
            fence = match[2]
            lines.append("")
        elif fence:
            fence = "" if line.strip() == fence else fence
            lines.append("")
        else:
            lines.append(line)
    return "\n".join(lines)


def anchors(text: str) -> set[str]:
    """The anchors of a page: its headings, as GitHub and the site spell them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.+?) *$", without_code(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = found.get(slug, 0)
        found[slug] = number + 1
        if number:
            found[f"{slug}-{number}"] = 1
    return set(found)


def wrong_links(page: Path) -> Iterator[str]:
    """Links of a page to files and anchors that are not there."""
    for target in LINK.findall(without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            if str(path.relative_to(ROOT)) not in GENERATED:
                yield f"the link {target} leads nowhere"
        elif anchor and anchor not in anchors(path.read_text()):
            yield f"{path.name} has no heading for the link {target}"


def wrong_lists(page: Path) -> Iterator[str]:
    """Lists right after a line of text: the site shows them as part of the paragraph."""
    before = ""
    for line in without_code(page.read_text()).splitlines():
        if re.match(r"- ", line) and before and not before.startswith((" ", "-")):
            yield f"no empty line before the list item {line[:60]!r}"
        before = line


def command_lines(text: str) -> Iterator[str]:
    """The command lines of a page, each as one line."""
    fence, held = "", ""
    for line in text.splitlines():
        match = FENCE.match(line)
        if match and not fence:
            fence = match[2] if match[3] in ("", "sh", "bash", "console") else "other" + match[2]
        elif fence:
            if line.strip() == fence.removeprefix("other"):
                fence = held = ""
            elif not fence.startswith("other"):
                held += line.strip().removeprefix("$ ")
                if held.endswith("\\"):
                    held = held[:-1]
                    continue
                if is_command(held):
                    yield held
                held = ""
    for span in SPAN.findall(without_code(text)):
        line = " ".join(span.split())
        if is_command(line) and "…" not in line:
            yield line


def wrong_paths(text: str) -> Iterator[str]:
    """Files of this repository in code spans that are not there."""
    for span in SPAN.findall(without_code(text)):
        found = re.match(
            r"(?:matex_tf|patches|readers|tests|benchmarks|examples|exchange)/[\w./*-]+\.(?:py|md)\b", span
        )
        if found and found[0] not in EXAMPLES and not list(ROOT.glob(found[0])):
            yield f"there is no {found[0]}"


@cache
def all_flags() -> frozenset[str]:
    """Every flag that something in this repository names, and those of other programs that the docs speak of."""
    found = set(FOREIGN) | pytest_flags()
    for command in commands():
        found |= known_flags(command)
    for folder, pattern in (("benchmarks", "*.py"), ("scripts", "*"), ("tests", "*.py"), ("examples", "*.py")):
        for path in (ROOT / folder).rglob(pattern):
            if path.is_file() and path.suffix in ("", ".py") and not path.name.startswith("test_"):
                found |= set(FLAG.findall(path.read_text(errors="ignore")))
    return frozenset(found)


def wrong_flag_spans(text: str) -> Iterator[str]:
    """Flags in code spans that nothing has."""
    for span in SPAN.findall(without_code(text)):
        for flag in re.findall(r"(?:^|\s)(--[a-z][\w-]*)", span):
            if not is_command(" ".join(span.split())) and flag not in all_flags():
                yield f"nothing has the flag {flag}"


def problems(page: Path) -> Iterator[str]:
    """All that is wrong with a page."""
    yield from wrong_links(page)
    yield from wrong_lists(page)
    yield from wrong_paths(page.read_text())
    yield from wrong_flag_spans(page.read_text())
    for line in command_lines(page.read_text()):
        if found := wrong_command(line):
            yield f"{line}: {found}"
    if page.is_relative_to(ROOT):
        yield from check_prose.wrong_prose(page.relative_to(ROOT).as_posix(), page.read_text())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", metavar="PAGE", nargs="*", type=Path, help="a page; without any, all pages")
    checked = [page.resolve() for page in parser.parse_args(arguments).pages] or pages()
    found = [f"{page.relative_to(ROOT)}: {problem}" for page in checked for problem in problems(page)]
    lines = sum(1 for page in checked for _ in command_lines(page.read_text()))
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(checked)} pages, {lines} command lines: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
