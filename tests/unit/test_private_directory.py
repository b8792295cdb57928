"""The directory that nobody else can write to."""

import os

from matex_tf.storage.private_directory import Folder


def test_a_file_that_goes_while_names_are_listed_is_no_error(tmp_path, monkeypatch):
    """Another process renames its draft between the listing and the look at each file."""
    (tmp_path / "kept").write_text("a")
    (tmp_path / "draft").write_text("b")
    listing = os.scandir

    class Listed:
        def __init__(self, where):
            self.entries = list(listing(where))

        def __enter__(self):
            os.unlink(tmp_path / "draft")
            return self.entries

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(os, "scandir", Listed)
    with Folder(tmp_path, [], "--watch-dir") as folder:
        assert folder.names() == ["kept"]
