"""A row of the tables: names of a module of another package, and what this package does with them."""

from __future__ import annotations

from typing import NamedTuple


class Fact(NamedTuple):
    """Names of one owner.

    Attributes:
        module: such as "keras.src.losses.loss"; of Keras 2 as "tf_keras.…". Several, with "|" between them, if the
            module has moved: one of them is enough.
        owner: the class that has the names, several with "|" if it was renamed; "" for the module itself, and "*" for
            names that functions of the module give to what they make.
        names: one after the other, with spaces.
        what: what this package does with them.
        since, before: the first version that has them, and the first that lacks them, such as "3.13"; "" if all do.
        optional: whether the code does without those that are gone.
    """

    module: str
    owner: str
    names: str
    what: str
    since: str = ""
    before: str = ""
    optional: bool = False

    @property
    def package(self) -> str:
        """The package of the module: "keras", "tf_keras" or "tensorflow"."""
        return self.module.partition(".")[0]

    def paths(self) -> list[list[str]]:
        """For each name the paths in the module, of which one is enough."""
        owners = self.owner.split("|")
        return [
            [f"{owner}.{one}" if owner else one for owner in owners for one in name.split("|")]
            for name in self.names.split()
        ]


def numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, such as (3, 16)."""
    found = []
    for part in version.split(".")[:2]:
        digits = "".join(character for character in part if character.isdigit())
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)
