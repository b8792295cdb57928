"""scripts/check_docs.py: it finds what is wrong with a link or a command line, and takes what is right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import check_docs, check_prose, draw_docs, rooms, site_lists

ROOT = Path(__file__).resolve().parents[2]
while not (ROOT / "setup.py").is_file():
    ROOT = ROOT.parent


@pytest.mark.parametrize(
    "line",
    [
        "matex-tf run -n 4 --faults shrink --bucket-mb=8 train.py --anything of-the-script",
        "matex-tf run --hosts node1:4,node2:4 -x DATA -n 8 train.py",
        "matex-tf run -n 2 -m pytest tests/ -k name",
        "matex-tf plan --compute 120ms --parameters 25M --network 1Gbit,50us -n 4",
        "matex-tf bench allreduce -n 4 --repeat 11",
        "matex-tf help docs/loops.md",
        "mpirun -n 4 python -m matex_tf --codec int8 train.py",
        "MATEX_TF=1 mpirun -n 4 python train.py",
        "scripts/bench step --models small,lenet",
        "scripts/test --oldest -k name",
        "python benchmarks/hosts.py -n 4 -- matex-tf run -n 2 train.py",
        "python examples/digits.py --result FILE.json",
        "python -m matex_tf.settings",
        "pip install '.[cpu,mpi,data]'",
    ],
)
def test_right_lines(line):
    assert check_docs.is_command(line)
    assert check_docs.wrong_command(line) == ""


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("matex-tf trains -n 4 train.py", "no command trains"),
        ("matex-tf help docs/lops.md", "no page docs/lops.md"),
        ("matex-tf run -n 4 --fault shrink train.py", "no flag --fault"),
        ("matex-tf run -n 4 --faults shrunk train.py", "can be abort or shrink"),
        ("matex-tf run --strategy gossip --faults restart train.py", "cannot be started again"),
        ("matex-tf run -n 4 examples/no_such.py", "there is no examples/no_such.py"),
        ("matex-tf run -n 4 examples/digits.py --no-such", "no flag --no-such"),
        ("matex-tf bench allreduce --no-such 3", "no flag --no-such"),
        ("mpirun -n 4 python -m matex_tf --codec int9 train.py", "can be none or bf16"),
        ("srun --mpi=pmix python -m matex_tf --no-such train.py", "no flag --no-such"),
        ("scripts/no-such", "there is no scripts/no-such"),
        ("scripts/bench no-such-part", "no part no-such-part"),
        ("scripts/bench step --no-such", "no flag --no-such"),
        ("scripts/test tests/no_such.py", "there is no tests/no_such.py"),
        ("python -m matex_tf.no_such", "no module"),
        ("python benchmarks/hosts.py -n 4 -- matex-tf runs train.py", "no command runs"),
        ("pip install '.[no-such]'", "no extra no-such"),
        ("pytest --no-such-flag", "no flag --no-such-flag"),
    ],
)
def test_wrong_lines(line, problem):
    assert check_docs.is_command(line)
    assert problem in check_docs.wrong_command(line)


def test_links_lists_and_lines_of_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# One `two` [three](x.md)\n\n```\n# not a heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[right](other.md#one-two-three) and [a code's](other.md#not-a-heading)\n- a list\n\n"
        "[gone](gone.md) `[no](link.md)`\n\n```\nmatex-tf run -n 4 \\\n    --no-such\nplain text\n```\n"
        "`matex-tf nothing here`"
    )
    assert [line[:36] for line in check_docs.wrong_links(page)] == [
        "other.md has no heading for the link",
        "the link gone.md leads nowhere",
    ]
    assert len(list(check_docs.wrong_lists(page))) == 1
    assert list(check_docs.command_lines(page.read_text())) == ["matex-tf run -n 4 --no-such", "matex-tf nothing here"]


def test_flags_in_the_text():
    text = "`--faults shrink` and `--no-such on`\n```\n--in-a-block\n```\n"
    assert list(check_docs.wrong_flag_spans(text)) == ["nothing has the flag --no-such"]


def test_files_in_the_text():
    text = "`tests/no_such.py::test_it`, `tests/unit/test_docs.py`, `tests/*/test_d*.py`\n```\ntests/a_block.py\n```\n"
    assert list(check_docs.wrong_paths(text)) == ["there is no tests/no_such.py"]


def test_sentences_words_and_lines(monkeypatch):
    """Code and links count as they are read; tables by cells; code blocks not at all."""
    long = "word " * 26
    text = (
        f"# A title\n\n{'word ' * 13}and [a\nlink](of/a/page.md)\n`{long}`. {'word ' * 9}end. Next.\n\n"
        f"- {long}here.\n- It trains anew.\n\n```\n{long}anew\n```\n\n| {long} | `anew` |\n"
    )
    found = list(check_prose.problems(text))
    assert [one.split(":")[:2] for one in found] == [
        ["line 5 has 189 characters, 100 at most"],
        ["line 7 has 137 characters, 100 at most"],
        ["line 7", " 27 words, 25 at most"],
        ["line 8", " 'anew'"],
        ["line 14", " 26 words, 25 at most"],
    ]
    monkeypatch.setattr(check_prose, "NOT_YET", {"docs/old.md"})
    assert list(check_prose.wrong_prose("docs/new.md", text)) == found
    assert list(check_prose.wrong_prose("docs/old.md", text)) == []
    assert len(list(check_prose.wrong_prose("docs/old.md", "Well."))) == 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("A map behind it has no rule.", "map behind"),
        ("This is no pattern.", "is no "),
        ("There is no pattern, and it is no longer slow.", ""),
        ("The job goes on with the rest.", "goes on"),
        ("They are read from disks alone.", "from disks alone"),
        ("It is left alone.", ""),
        ("Use it where there is room.", "where there is"),
    ],
)
def test_words(words, found):
    """What readers stumbled over, and what looks like it and reads well."""
    problems = list(check_prose.problems(words))
    assert [one.split("'")[1] for one in problems] == [found] * bool(found)


def test_guides_are_short():
    """A guide has 450 words at most, besides code; other pages may be longer."""
    code = "```\n" + "word " * 500 + "\n```\n"
    short, long = f"{'A word. ' * 225}\n\n{code}", f"{'A word. ' * 226}\n\n{code}"
    guide, other = "docs/running.md", "docs/how-it-works.md"
    assert not [one for one in check_prose.wrong_prose(guide, short) if "a guide of" in one]
    assert list(check_prose.too_long(long)) == ["a guide of 452 words besides code, 450 at most"]
    assert [one for one in check_prose.wrong_prose(guide, long) if "a guide of 452 words" in one]
    assert not [one for one in check_prose.wrong_prose(other, long) if "a guide of" in one]
    assert all((ROOT / name).is_file() for name in check_prose.guides())


def test_exceptions_are_pages():
    """A page that is gone is no exception any more."""
    assert all((ROOT / name).is_file() for name in check_prose.NOT_YET)


@pytest.mark.parametrize("name", draw_docs.PICTURES)
def test_pictures_that_explain(name):
    """What scripts/draw_docs.py draws is what the pages show."""
    assert (ROOT / "docs" / "images" / name).read_text() == draw_docs.PICTURES[name]()


@pytest.mark.parametrize("page", check_docs.pages(), ids=lambda page: page.name)
def test_pages(page):
    """Every link, list, flag and command line of the docs."""
    assert list(check_docs.problems(page)) == []


def test_the_page_of_settings():
    """It ends in what `python -m matex_tf.settings` prints."""
    printed = subprocess.run(
        [sys.executable, "-m", "matex_tf.settings"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (ROOT / "docs" / "settings.md").read_text().endswith(f"\n{printed.stdout}")


def test_the_script_of_the_first_pages():
    """What stands there is what is in examples/, so that its output was printed by it."""
    script = (ROOT / "examples" / "first.py").read_text()
    assert script in (ROOT / "README.md").read_text()
    assert script in (ROOT / "docs" / "tutorial.md").read_text()


def test_the_first_commands():
    """The README opens with the demo and the tests."""
    block = (ROOT / "README.md").read_text().partition("```\n")[2].partition("```")[0]
    assert [line.split()[0] for line in block.splitlines()] == ["scripts/demo", "scripts/test"]


def test_places_of_the_walks():
    """Each `file.py: function` of the architecture is in the code."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    places = re.findall(r"((?:matex_tf|patches|readers)/[\w/]+\.py):\s+([\w.]+)", text)
    assert len(places) > 40
    for file, name in places:
        path = ROOT / file
        assert re.search(rf"^ *(def|class) {name.split('.')[-1]}\b", path.read_text(), re.MULTILINE), (file, name)
    for file in re.findall(r"`((?:matex_tf|patches|readers)/[\w/]+\.py)`", text):
        assert (ROOT / file).is_file(), file


def test_pictures_of_the_rooms():
    """Each room is drawn once, and no arrow goes up but in a circle."""
    uses = {"cli": {"job", "core"}, "job": {"core"}, "core": set()}
    assert rooms.storeys(uses) == {"cli": 2, "job": 1, "core": 0}
    assert rooms.direct(uses) == {"cli": {"job"}, "job": {"core"}, "core": set()}
    drawn = rooms.pictures()["rooms.svg"]
    assert all(drawn.count(f">{room}/</text>") == 1 for room in ("cli", "core", "patches", "readers"))


def test_steps_are_one_list_on_the_site():
    """What belongs to a step is indented by four spaces there; code at the left, and text after the list, stay."""
    page = "1. a\n   b\n\n   ```\n   c\n   ```\n\n   - d\n2. e\n\nf\n\n- g\n  h\n\n```\n1. i\n   j\n```\n   k"
    site = "1. a\n    b\n\n    ```\n    c\n    ```\n\n    - d\n2. e\n\nf\n\n- g\n    h\n\n```\n1. i\n   j\n```\n   k"
    assert site_lists.four_spaces(page) == site
