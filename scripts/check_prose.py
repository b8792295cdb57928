"""Check how the docs read: the length of sentences, lines and guides, and words that readers stumbled over.

`python scripts/check_prose.py PAGE ...` prints what is wrong. `check_docs.py` calls it for every page but those of
`NOT_YET`, which are older than these rules: a page that meets them must leave the list.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MOST_WORDS = 25
MOST_CHARACTERS = 100
MOST_WORDS_OF_A_GUIDE = 450  # besides code

#: What readers stumbled over, as patterns, and what to write instead.
WORDS = {
    r"kin": "name them, or 'and similar'",
    r"anew": "again",
    r"in the place of": "instead of",
    r"(is|are|was|were) told": "gets, knows",
    r"of which": "two sentences",
    r"shar(e|es|ed|ing) out|shared among": "split",
    r"(train|trains|trained) apart": "train independently",
    r"held against": "compared with",
    r"a line says so": "quote the line",
    r"that of one rank's": "that of one rank",
    r"what stands there": "what it says",
    r"(?<!there )(is|are|was|were) no (?!longer|more|other|better|worse)": "is not a, are not",
    r"stands? (in front|behind|between|for itself)": "comes before, comes after",
    r"in front of": "before",
    r"(map|training|it|them|what) behind": "after",
    r"go(es)? on|going on|went on": "continues",
    r"all the same": "anyway, although",
    r"dealt out|handed on|passed along|takes? along": "divided, sent",
    r"at (its|their) word": "what is believed",
    r"as time will have it": "in any order",
    r"but for": "except",
    r"walk(s|ed)? over": "iterates over, a pass",
    r"where (there|nobody|none) (is|are|has|have|can)": "if",
    r"(is|are|from|on|in|has|have|for|its) (?!left\b)\S+ alone": "only",
    r"goes? round": "travel from rank to rank",
    r"comes? of (it|them|that)": "results",
}

#: Pages that are not rewritten yet. Take a page out of this list when it is; never add one.
NOT_YET = frozenset(
    {
        "CHANGELOG.md",
    }
)

FENCE = re.compile(r"^ *(`{3,})")
SPAN = re.compile(r"`+[^`]+`+")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?<!\bal)(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)[.?!][)\"'*]*(?:\s+|$)")


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, items of lists, headings and cells of tables, each with the number of its first line."""
    held: list[str] = []
    begun, fence = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if mark or fence:
            fence = "" if mark and line.strip() == fence else fence or (mark[1] if mark else "")
            line = ""
        new = re.match(r" *([-*+]|\d+\.|#+|\||>|!!!) ?", line)
        if held and (new or not line.strip()):
            yield begun, " ".join(held)
            held = []
        if line.lstrip().startswith("|"):
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))
        elif line.strip():
            begun = begun if held else number
            held.append(re.sub(r"^ *([-*+]|\d+\.|#+|>) +", "", line).strip())
    if held:
        yield begun, " ".join(held)


def plain(text: str) -> str:
    """A block as it is read: code and formulas count as a word each, links as their text."""
    text = LINK.sub(r"\1", SPAN.sub("CODE", LINK.sub(lambda link: link[0] if "`" not in link[1] else link[1], text)))
    return re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", text)


def sentences(block: str) -> list[str]:
    """The sentences of a block."""
    return [one.strip() for one in END.split(plain(block)) if one.strip()]


def words(sentence: str) -> int:
    """How many words a sentence has; signs between them are none."""
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def long_lines(text: str) -> Iterator[str]:
    """Lines of the source that no diff can show; tables, headings and options of the API cannot be broken."""
    fence = False
    for number, line in enumerate(text.splitlines(), 1):
        fence ^= bool(FENCE.match(line))
        if not fence and not line.startswith(("|", "!", "#", "    ")) and len(line) > MOST_CHARACTERS:
            yield f"line {number} has {len(line)} characters, {MOST_CHARACTERS} at most"


def problems(text: str) -> Iterator[str]:
    """All that is wrong with how a page reads."""
    yield from long_lines(text)
    for number, block in blocks(text):
        for sentence in sentences(block):
            if (count := words(sentence)) > MOST_WORDS:
                yield f"line {number}: {count} words, {MOST_WORDS} at most: {sentence[:60]}…"
        for pattern, instead in WORDS.items():
            if found := re.search(rf"\b({pattern})\b", plain(block), re.IGNORECASE):
                yield f"line {number}: {found[0]!r}: {instead}"


@cache
def guides() -> frozenset[str]:
    """The pages that mkdocs.yml has under Guides."""
    menu = (ROOT / "mkdocs.yml").read_text().partition("- Guides:")[2].partition("- Reference:")[0]
    return frozenset(f"docs/{page}" for page in re.findall(r": (\S+\.md)", menu))


def too_long(text: str) -> Iterator[str]:
    """A guide that nobody reads to its end: what does not lead to the goal belongs to reference or explanation."""
    count = sum(words(plain(block)) for _, block in blocks(text))
    if count > MOST_WORDS_OF_A_GUIDE:
        yield f"a guide of {count} words besides code, {MOST_WORDS_OF_A_GUIDE} at most"


def wrong_prose(name: str, text: str) -> Iterator[str]:
    """All that is wrong with how a page reads, if it is not one of `NOT_YET`; and a page that need not be there."""
    found = [*problems(text), *(too_long(text) if name in guides() else ())]
    if name not in NOT_YET:
        yield from found
    elif not found:
        yield f"reads well: take {name} out of NOT_YET in scripts/check_prose.py"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", metavar="PAGE", nargs="+", type=Path)
    pages = parser.parse_args(arguments).pages
    found = [f"{page}: {problem}" for page in pages for problem in problems(page.read_text())]
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
