"""The server of `matex-tf label`: who may ask it, what it refuses, what it answers; and training behind it on ranks."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from matex_tf.cli.main import main
from matex_tf.features.label import server
from matex_tf.features.label.board import Board
from matex_tf.features.label.images import open_images
from matex_tf.features.label.rounds import Result
from matex_tf.features.label.store import Store
from tests.features.label.label_server import Running, discs, own_port

TOKEN = "a-token-of-this-test"
HOST = {"host": "localhost:8765"}
JSON = {"content-type": "application/json", "origin": "http://localhost:8765", **HOST}


@pytest.fixture
def board(tmp_path):
    random_pixels = np.random.default_rng(0).integers(0, 255, (30, 8, 8), np.uint8)
    np.save(tmp_path / "x.npy", random_pixels)
    images = open_images(str(tmp_path / "x.npy"))
    store = Store(str(tmp_path / "l.sqlite"), images.names)
    store.new_group("ann", "water")
    store.new_group("ann", "<img src=x onerror=alert(1)>")
    yield Board(store, images)
    store.close()


@pytest.fixture
def page(board):
    app = server.application(board, None, TOKEN, "x.npy", "ann")
    with TestClient(app, base_url="http://localhost:8765", follow_redirects=False) as client:
        yield client


@pytest.fixture
def known(page):
    """A browser that has opened the address with the token."""
    answer = page.get(f"/?token={TOKEN}")
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and cookie.startswith("matex-label-8765=")
    assert TOKEN not in answer.headers["set-cookie"]
    return page


def act(page, **said):
    return page.post("/api/act", content=json.dumps({"person": "ann", **said}), headers=JSON)


def test_the_token(page):
    """Without it nothing is answered, whatever is asked; a wrong one is none."""
    for path in (
        "/",
        "/api/all",
        "/image/0/64.png",
        "/page/main.js",
        "/export/labels.csv",
        "/nothing",
        "/?token=wrong",
    ):
        answer = page.get(path)
        assert answer.status_code == 403 and "token" in answer.text and "water" not in answer.text, path
    assert act(page, kind="undo").status_code == 403
    assert page.get("/api/all", headers={"authorization": f"token {TOKEN}"}).status_code == 200
    assert (
        page.get("/api/all", headers={"cookie": "matex-label=x; \udcff".encode("latin-1", "replace")}).status_code
        == 403
    )


def test_a_session(known, monkeypatch):
    """Each browser has its own, for each port that it knows; it ends after a month, and with the token."""
    name, session = next(iter(known.cookies.items()))
    other = known.get(f"/?token={TOKEN}", headers={"host": "localhost:9000"}).headers["set-cookie"]
    assert other.startswith("matex-label-9000=") and session not in other
    assert (
        known.get(f"/?token={TOKEN}", headers={"host": "localhost"}).headers["set-cookie"].startswith("matex-label-80=")
    )
    known.cookies.clear()

    def answers(value, token=TOKEN, **headers):
        guard = known.app
        monkeypatch.setattr(guard, "_token", token)
        return known.get("/api/all", headers={"cookie": f"{name}={value}", **headers}).status_code

    begun, word, sign = session.split(".")
    assert answers(session) == 200 and answers(session, host="localhost:9000") == 403
    later = f"{int(begun) + 1}.{word}.{sign}"
    for wrong in (
        TOKEN,
        "",
        ".",
        "..",
        later,
        f"{begun}.{word}",
        f".{sign}",
        session[:-1],
        session.upper(),
        "x" * 9999,
    ):
        assert answers(wrong) == 403, wrong
    assert answers(session, token="another") == 403
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 29 * 24 * 3600)
    assert answers(session) == 200
    monkeypatch.setattr(time, "time", lambda: now + 31 * 24 * 3600)
    assert answers(session) == 403


def test_only_the_page_itself(known):
    """Pages of other sites, of other ports of this machine and of other names that lead here are refused."""
    good = {"kind": "assign", "images": [1], "group": 1, "person": "ann"}
    wrong = [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example"},
        {"host": "evil.example:8765"},
        {"host": "localhost.evil.example"},
        {"host": ""},
    ]
    for headers in wrong:
        answer = known.post("/api/act", content=json.dumps(good), headers={**JSON, **headers})
        assert answer.status_code == 403, headers
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert (
            known.post("/api/act", content=json.dumps(good), headers={**JSON, "content-type": kind}).status_code == 415
        )
    assert known.get("/image/1/64.png", headers={"sec-fetch-site": "same-site"}).status_code == 403
    tunnel = {**JSON, "host": "127.0.0.1:9000", "origin": "http://127.0.0.1:9000"}  # an ssh tunnel has its own port
    session = known.get(f"/?token={TOKEN}", headers={"host": "127.0.0.1:9000"}).headers["set-cookie"].partition(";")[0]
    assert known.post("/api/act", content=json.dumps(good), headers={**tunnel, "cookie": session}).status_code == 200


def test_headers(known):
    """No script but the page's own, in no frame of others."""
    answer = known.get("/")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"\son\w+=|javascript:|<script>(?!</script>)", answer.text)
    assert known.get("/api/all").headers["cache-control"] == "no-store"
    for file in (Path(server.__file__).parent / "page").glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", file.read_text()), file


def test_paths(known):
    """Only the files of the page, and images by their numbers."""
    wrong = ["/page/../server.py", "/page/%2e%2e/server.py", "/page/..%2fserver.py", "/page/server.py"]
    wrong += [
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/image/../../etc/passwd/64.png",
        "/../l.sqlite",
        "/l.sqlite",
    ]
    wrong += ["/image/30/64.png", "/image/-1/64.png", "/image/1/65.png", f"/image/{10**20}/64.png", "/api/image/30"]
    for path in wrong:
        assert known.get(path).status_code in (404, 403), path
    assert known.get("/image/29/64.png").content.startswith(b"\x89PNG")
    assert known.get("/api/image/29").json()["name"] == "29"


def test_what_is_done(known, board):
    """An action is answered once it is kept; a refusal says why; all pages hear of it."""
    news = []
    leave = board.listen(news.append)
    answer = act(known, kind="assign", images=[3, 4], group=1)
    assert answer.status_code == 200 and answer.json()["labels"] == [1, 1]
    assert board.store.votes() == {3: {"ann": 1}, 4: {"ann": 1}}
    assert [one["images"] for one in news] == [[3, 4]]
    assert act(known, kind="assign", images=[3], group=9).json()["error"] == "there is no such group any more."
    assert act(known, kind="assign", images=[30], group=1).status_code == 409
    assert act(known, kind="undo").json()["labels"] == [-2, -2]
    assert act(known, kind="undo", person="bob").json()["error"] == "there is nothing to undo."
    leave()
    act(known, kind="redo")
    assert len(news) == 2
    assert act(known, kind="assign", images=[3], group=2, person="bob").json()["split"] == {"3": {"ann": 1, "bob": 2}}
    shown = known.get("/api/all").json()
    assert shown["labels"][3] == -2 and shown["labels"][4] == 1 and list(shown["split"]) == ["3"]
    assert known.post("/api/training", content='{"ask": "luck"}', headers=JSON).status_code == 400
    assert known.get("/export/labels.csv").text.count("\n") == 31


def test_skipped(known, board):
    """By one person: the image is asked of others still, after those that nobody has skipped, and has no label."""
    act(known, kind="assign", images=[1], group=1, person="bob")
    news = act(known, kind="assign", images=[3, 4], group=-1).json()
    assert news["labels"] == [-2, -2] and news["skipped"] == {"3": ["ann"], "4": ["ann"]}
    known.post("/api/training", content='{"ask": "entropy"}', headers=JSON)  # chooses the queue anew
    shown = known.get("/api/all").json()
    assert shown["skipped"] == {"3": ["ann"], "4": ["ann"]} and set(shown["queue"][-2:]) == {3, 4}
    assert len(shown["queue"]) == 29
    act(known, kind="assign", images=[3], group=-1, person="bob")
    act(known, kind="assign", images=[4], group=2, person="bob")
    known.post("/api/training", content='{"ask": "margin"}', headers=JSON)
    shown = known.get("/api/all").json()
    assert not {3, 4} & set(shown["queue"]) and shown["labels"][3:5] == [-2, 2]
    assert shown["skipped"] == {"3": ["ann", "bob"]}


def test_any_content(known, board, request):
    """Whatever is sent, the answer is an error with its reason, never one of the server's; labels stay as they are."""
    chance = random.Random(0)
    before = board.store.votes(), board.store.groups()
    kinds = ["assign", "rename", "merge", "split", "new group", "luck", None, 3, [], {}]
    values = [None, True, -1, 1.5, 1e400, 10**30, "", "x" * 500, "\u0000", "\ud800", "<b>"]
    values += [[], [[]], {}, [None], [1.5], ["1"], [10**30]]
    for _ in range(3000 if request.config.getoption("--all") else 150):
        said = {name: chance.choice(values) for name in ("group", "into", "name", "images") if chance.random() < 0.8}
        said |= {"kind": chance.choice(kinds), "person": chance.choice(["ann", *values])}
        if said["kind"] in ("assign", "new group", "split") and (
            said.get("images") in ([], None) or "images" not in said
        ):
            said["images"] = [10**6]
        answer = known.post("/api/act", content=json.dumps(said), headers=JSON)
        assert answer.status_code in (400, 409, 422) and answer.json()["error"], said
    for content in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100000, b'{"kind": NaN}'):
        assert known.post("/api/act", content=content, headers=JSON).status_code == 400, content[:20]
    assert known.post("/api/act", content=b"x" * (9 << 20), headers=JSON).status_code == 413
    assert (board.store.votes(), board.store.groups()) == before


def test_what_a_round_has_changed(board):
    """Said beside whether images without a label had a part in it."""
    chances = np.tile(np.array([[0.98, 0.02]], np.float32), (30, 1))
    board.suggest(Result(1, [1, 2], chances, chances, None, False))
    chances = chances.copy()
    chances[5] = [0.3, 0.7]
    board.suggest(Result(2, [1, 2], chances, chances, None, True))
    board.suggest(Result(2, [1, 2], chances, chances, None, True))  # again: compared with round 1
    news = board.snapshot()["news"]
    assert news["changed"] == [5] and news["pairs"] == [[1, 2, 1]]
    assert (news["before_semi"], news["semi"], news["sure"]) == (False, True, 29)
    assert board.snapshot()["queue"][0] == 5


def test_command_line(tmp_path, capsys):
    """Messages that name what is wrong; an export without a page."""
    np.save(tmp_path / "x.npy", np.zeros((3, 8, 8), np.uint8))
    x, labels = str(tmp_path / "x.npy"), str(tmp_path / "l.sqlite")
    (tmp_path / "dangling").symlink_to("nowhere")
    for words, message in (
        ([str(tmp_path / "none")], "there is no"),
        ([x, x], "give one directory or file"),
        ([x, "--classes", "a,,b"], "--classes is 'a,,b'"),
        ([x, "--ask", "luck"], "it can be entropy or margin or disagreement or random"),
        ([x, "--held-out", "1"], "from 0 to below 1"),
        ([x, "--script", "none.py"], "--script is none.py"),
        ([x, "--export", str(tmp_path), "--labels", labels], "nobody has labelled an image yet"),
        ([x, "--labels", str(tmp_path / "dangling")], "is a link to nowhere, which is missing"),
        ([x, "--labels", str(tmp_path / "no" / "labels")], "cannot be opened (No such file or directory)"),
        (
            [x, "--labels", str(tmp_path / "l2.sqlite"), "--classes", "a", "--export", x],
            "(File exists): give a directory",
        ),
        ([x, "--labels", str(tmp_path / "l2.sqlite"), "--export", f"{x}/out"], "(Not a directory): give a directory"),
    ):
        assert main(["label", *words]) in (1, 2)
        assert message in capsys.readouterr().err
    store = Store(labels, ["0", "1", "2"], "x.npy")
    store.assign("ann", [1], store.new_group("ann", "water").group)
    store.close()
    assert main(["label", x, "--labels", labels, "--export", str(tmp_path / "out")]) == 0
    assert "1,water,people,1.00,ann: water" in (tmp_path / "out" / "labels.csv").read_text()


def own_script():
    """The script that docs/label-reference.md shows."""
    page = (Path(__file__).parents[3] / "docs" / "label-reference.md").read_text()
    return page.partition("## A script of your own")[2].partition("```python\n")[2].partition("```")[0]


@pytest.mark.variants(1)
@pytest.mark.parametrize("script", ["built-in", "own"])
def test_training_on_ranks(tmp_path, script):
    """Two ranks learn while people go on; suggestions come, and a second round goes on with new labels. The server is
    killed: its ranks end; started again, all is there."""
    images, kind = discs()
    np.save(tmp_path / "x.npy", images)
    words = ["x.npy", "--classes", "disc,square", "-n", "2", "--steps", "20", "--size", "12", "--augment", "shift"]
    if script == "own":
        (tmp_path / "own.py").write_text(own_script())
        words += ["--script", "own.py"]
    running = Running(tmp_path, [*words, "--port", own_port()])
    for group in (0, 1):
        some = [int(image) for image in np.flatnonzero(kind == group)[:10]]
        running.ask("/api/act", {"kind": "assign", "person": "ann", "images": some, "group": group + 1})
    slowest = 0.0
    while True:  # the page is answered at once, all the time
        begin = time.monotonic()
        shown = running.ask("/api/all")
        slowest = max(slowest, time.monotonic() - begin)
        assert shown["training"]["state"] != "failed", shown["training"]["text"]
        if shown["suggested"]:
            break
        assert running.process.poll() is None
        time.sleep(0.05)
    assert slowest < 5
    assert len(shown["suggested"]) == 120 and len(shown["queue"]) == 100
    assert shown["training"]["log"] and shown["training"]["log"][-1]["loss"] > 0
    running.ask("/api/act", {"kind": "assign", "person": "ann", "images": shown["queue"][:1], "group": 1})
    shown = running.until(lambda shown: shown["news"]["round"] >= 2)
    folder = next(tmp_path.glob(".matex-label-*"))
    assert "2 ranks on 1 node" in (folder / "printed").read_text()
    running.process.kill()
    running.process.wait()
    deadline = time.monotonic() + 60
    while ranks_of(folder):
        assert time.monotonic() < deadline, ranks_of(folder)
        time.sleep(0.1)
    again = Running(tmp_path, [*words[:3], "--train", "off"])
    kept = again.ask("/api/all")
    assert kept["labels"] == shown["labels"] and kept["suggested"] == shown["suggested"]
    assert again.url == running.url
    assert again.stop() == 0


def ranks_of(folder):
    """Processes that work in the directory of a training."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(folder).encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return [number for number in found if number != os.getpid()]


def test_a_script_that_fails(tmp_path):
    """The page says so, with the end of what it printed, and goes on."""
    np.save(tmp_path / "x.npy", discs()[0])
    (tmp_path / "wrong.py").write_text("raise ValueError('a reason that is shown')\n")
    running = Running(tmp_path, ["x.npy", "--classes", "a,b", "-n", "1", "--script", "wrong.py"])
    for group in (1, 2):
        running.ask(
            "/api/act", {"kind": "assign", "person": "ann", "images": [2 * group, 2 * group + 1], "group": group}
        )
    deadline = time.monotonic() + 120
    while (state := running.ask("/api/all")["training"])["state"] != "failed":
        assert time.monotonic() < deadline, state
        time.sleep(0.05)
    assert "a reason that is shown" in state["text"]
    assert running.ask("/api/act", {"kind": "undo", "person": "ann"})["labels"] == [-2, -2]
    assert running.stop(signal.SIGTERM) == 0
    assert not list(tmp_path.glob(".matex-label-*"))


DIES = """
import os
from pathlib import Path
import numpy as np
from matex_tf.features.label.rounds import rounds

for task in rounds():
    labels = task.load("labels")
    if (labels >= 0).sum() > 4 and not Path("died").exists():
        Path("died").touch()
        os._exit(7)
    np.save(f"{task.folder}/suggestions.npy", np.full((len(labels), 2), 0.5 if Path("died").exists() else 0.25))
"""


@pytest.mark.variants(0)
def test_a_script_that_dies_later(tmp_path):
    """One that has done a round before is started again, with a line that says so."""
    np.save(tmp_path / "x.npy", discs()[0])
    (tmp_path / "dies.py").write_text(DIES)
    running = Running(tmp_path, ["x.npy", "--classes", "a,b", "-n", "1", "--script", "dies.py"])
    for group in (1, 2):
        running.ask(
            "/api/act", {"kind": "assign", "person": "ann", "images": [2 * group, 2 * group + 1], "group": group}
        )
    running.until(lambda shown: shown["confidence"] and shown["confidence"][0] == 25)
    running.ask("/api/act", {"kind": "assign", "person": "ann", "images": [9], "group": 1})
    shown = running.until(lambda shown: shown["confidence"][0] == 50)
    assert shown["news"]["round"] == 3
    assert any("ended in round 2 with exit code 7" in line and "started again" in line for line in running.said)
    assert running.stop() == 0


def test_it_listens_here_alone(tmp_path):
    """On the loopback interface, and at another port where one is taken."""
    np.save(tmp_path / "x.npy", discs()[0])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert (
            main(
                [
                    "label",
                    str(tmp_path / "x.npy"),
                    "--labels",
                    str(tmp_path / "l"),
                    "--port",
                    str(port),
                    "--train",
                    "off",
                ]
            )
            == 1
        )
    running = Running(tmp_path, ["x.npy", "--train", "off"])
    port = int(running.base.rpartition(":")[2])
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    addresses = {
        fields[1].split(":")[0]
        for fields in listening
        if int(fields[1].split(":")[1], 16) == port and fields[3] == "0A"
    }
    assert addresses == {"0100007F"}
    assert running.stop() == 0


SECOND = """
import signal
from matex_tf.features.label.training import Training
stop = Training.stop
Training.stop = lambda training: (signal.raise_signal(signal.SIGINT), stop(training))
"""


def test_ctrl_c_twice(tmp_path):
    """The second one comes while training is stopped, which ends nevertheless: no traceback, and nothing is left."""
    np.save(tmp_path / "x.npy", discs()[0])
    (tmp_path / "own.py").write_text("")
    running = Running(tmp_path, ["x.npy", "--script", "own.py"], SECOND)
    assert len(list(tmp_path.glob(".matex-label-*"))) == 1
    assert running.stop() == 0, running.said
    assert "Traceback" not in "".join(running.said)
    assert not list(tmp_path.glob(".matex-label-*"))


def test_ctrl_c_before_the_page(tmp_path):
    """While images are opened: an exit code, and no traceback."""
    np.save(tmp_path / "x.npy", discs()[0])
    early = "import signal; from matex_tf.features.label import images; "
    early += "images.open_images = lambda *_: signal.raise_signal(signal.SIGINT)"
    line = f"{early}\nimport sys; from matex_tf.cli.main import main; sys.exit(main(['label', 'x.npy']))"
    ended = subprocess.run([sys.executable, "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")
