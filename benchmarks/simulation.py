"""Strategies on up to 10,000 groups with slow links of high latency, simulated event by event."""

from __future__ import annotations

from benchmarks import tables
from benchmarks.unequal_groups import Cluster, efficiencies
from matex_tf.planning import plotting

SIZES = (2, 10, 100, 1000, 10_000)


def main() -> None:
    parser = tables.parser("simulation", __doc__)
    parser.add_argument("--mbit", type=float, default=100, help="rate of each group's link, in Mbit/s (default 100)")
    parser.add_argument("--latency", type=float, default=50, metavar="MS", help="of a message (default 50)")
    parser.add_argument("--compute", type=float, default=100, metavar="MS", help="of a step of a group (default 100)")
    parser.add_argument("--parameters", type=float, default=1.3e6, help="of the model (default 1.3 million)")
    parser.add_argument("--every", type=int, default=16, help="steps between two meetings (default 16)")
    parser.add_argument("--most", type=int, default=10_000, help="groups at most (default 10000)")
    parser.add_argument("--picture", metavar="FILE", help="draw efficiencies to this file (needs matplotlib)")
    options = tables.parse(parser)
    found = {}
    for groups in [size for size in SIZES if size <= options.most]:
        cluster = Cluster(
            groups, options.compute / 1e3, 4 * options.parameters, options.latency / 1e3, 8e-6 / options.mbit
        )
        found[groups] = efficiencies(cluster, options.every)
    names = list(next(iter(found.values())))
    rows = [(f"{groups:,}", *(f"{100 * own[name]:.1f}" for name in names)) for groups, own in found.items()]
    title = f"efficiency, %, on links of {options.mbit:g} Mbit/s and {options.latency:g} ms"
    note = (
        "steps a second of all groups, of those of groups that never meet; one in a hundred takes three times as long"
    )
    tables.show(title, ["groups", *names], rows, note=note)
    if options.picture:
        pyplot = plotting.pyplot()
        figure, axes = pyplot.subplots(figsize=(6, 4))
        for name in names:
            axes.plot(list(found), [100 * own[name] for own in found.values()], marker=".", label=name)
        axes.set_xscale("log")
        axes.set_ylim(0, 105)
        axes.set_xlabel("groups")
        axes.set_ylabel("efficiency, %")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.set_title(f"{options.parameters:,.0f} parameters, {options.compute:g} ms a step, {title[15:]}", fontsize=9)
        figure.savefig(options.picture, dpi=120, bbox_inches="tight")
    tables.keep({str(groups): own for groups, own in found.items()})


if __name__ == "__main__":
    main()
