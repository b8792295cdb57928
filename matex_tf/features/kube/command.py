"""`matex-tf kube`: print what Kubernetes needs to train a script on many pods.

That is a TrainJob with its TrainingRuntime for Kubeflow Trainer v2, or with `--mpijob` an MPIJob for the older MPI
Operator. Both start pods in which sshd waits, and one more whose `matex-tf run` starts the ranks in them by ssh.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matex_tf import __version__
from matex_tf import settings as settings_module
from matex_tf.errors import SettingError
from matex_tf.job.command_line import SETTING_PAGES, Convert, Parser, whole
from matex_tf.job.target import Target
from matex_tf.settings import Settings

#: Where both operators put the list of pods, and the keys of root.
_HOSTS, _KEYS = "/etc/mpi/hostfile", "/root/.ssh"
#: The image has no keys of its own: they would be the same in every pod that anybody starts from it.
_WAITS = "mkdir -p /run/sshd && ssh-keygen -A && exec /usr/sbin/sshd -De"
#: Kubernetes allows 63 letters for a pod's name, of which its number and part take some.
_MOST_LETTERS = 40
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ENVIRON = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)
_VOLUME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?:/.*")
_PLAIN = re.compile(r"[A-Za-z/][\w./-]*", re.ASCII)
#: Words that YAML does not take for text.
_NO_TEXT = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")

_Tree = dict[str, Any]


def _matching(pattern: str, what: str) -> Convert:
    def convert(flag: str, given: str) -> str:
        if not re.fullmatch(pattern, given) or not re.search("[1-9]", given):
            raise SettingError(f"{flag} is {given!r}; it must be {what}.")
        return given

    return convert


def _name(flag: str, given: str) -> str:
    if not _NAME.fullmatch(given) or len(given) > _MOST_LETTERS:
        raise SettingError(
            f"{flag} is {given!r}; it must begin with one of a to z, have only these, digits and hyphens, end with no "
            f"hyphen, and have {_MOST_LETTERS} letters at most."
        )
    return given


def _image(flag: str, given: str) -> str:
    if not re.fullmatch(r"[\w.:/@-]+", given, re.ASCII):
        raise SettingError(f"{flag} is {given!r}; it must be the name of an image, such as registry/me/train:1.")
    return given


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf kube",
        "-n N [options] [--setting VALUE ...] (SCRIPT | -m MODULE) [ARGS ...]",
        "Print a TrainJob of Kubeflow Trainer v2, with its runtime, that trains a script on N ranks; or an MPIJob. "
        "kubectl apply -f - takes what is printed. The image has the script, or a volume has. Where the script comes "
        "before the options, its arguments come after --.",
        f"docs/kubernetes.md; {SETTING_PAGES}",
        refusal="matex-tf kube has no flag {flag}{near}; matex-tf kube --help lists them, and those of the script come "
        "after --.",
        leads=True,
    )
    title = "pods (docs/kubernetes.md)"
    amount = _matching(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|k|M|G|T)", "an amount of Kubernetes, such as 8Gi or 500Mi")
    for flags, dest, metavar, convert, default, text in (
        (("-n", "-np"), "ranks", "N", whole(1, "a number of ranks"), 0, "Ranks"),
        (("--ranks-per-pod",), "each", "N", whole(1), 1, "Ranks in each pod (default: 1)"),
        (("--image",), "image", "TEXT", _image, f"matex_tf:{__version__}",
         f"Image of all pods, see packaging/Dockerfile (default: matex_tf:{__version__})"),
        (("--cpu",), "cpu", "N", _matching(r"\d+(\.\d{1,3})?|\d+m", "a number of cores, such as 4, 0.5 or 500m"), "",
         "Cores of each pod that trains"),
        (("--memory",), "memory", "8Gi", amount, "", "Memory of each pod that trains"),
        (("--gpus",), "gpus", "N", whole(1), 0, "GPUs (nvidia.com/gpu) of each pod that trains"),
        (("--shm",), "shm", "8Gi", amount, "1Gi", "Shared memory of a pod, by which its ranks exchange (default: 1Gi)"),
        (("--name",), "name", "TEXT", _name, "", "Name of the job (default: that of the script)"),
        (("--namespace",), "namespace", "TEXT", _name, "", "Namespace (default: that of kubectl)"),
    ):  # fmt: skip
        parser.add(title, *flags, dest=dest, metavar=metavar, convert=convert, default=default, help=text)
    parser.add(
        title, "--volume", action="append", dest="volumes", metavar="CLAIM:/DIR", default=[],
        help="Mount a PersistentVolumeClaim in each pod; the job runs in the first one. May be repeated",
    )  # fmt: skip
    parser.add(
        title, "--env", action="append", dest="environ", metavar="NAME=VALUE", default=[],
        help="A variable of the environment of all ranks; may be repeated",
    )  # fmt: skip
    parser.add(title, "--mpijob", action="store_true", help="Print an MPIJob (kubeflow.org/v2beta1)")
    parser.add_settings(leave_out=("env",))
    return parser


def command(given: argparse.Namespace) -> int:
    """Print the manifests; returns the exit code.

    Raises:
        SettingError: they cannot be made of what was given.
    """
    print("---\n".join("\n".join(_yaml(tree)) + "\n" for tree in manifests(given)), end="")
    return 0


def manifests(given: argparse.Namespace) -> list[_Tree]:
    """What Kubernetes is to be given, in this order.

    Raises:
        SettingError: they cannot be made of what was given.
    """
    settings = Settings.read(given.flags)
    target = Target.read([*given.first, *given.rest])  # its own options come after ours
    if not target.is_in_a_file:
        raise SettingError(f"{target.name} is in no file that pods could read: save the script in one.")
    if not given.ranks:
        raise SettingError("how many ranks? Give matex-tf kube -n N.")
    settings.refuse_conflicts(settings.training_ranks(given.ranks))
    if given.ranks % given.each:
        raise SettingError(f"-n {given.ranks} ranks cannot be {given.each} in each pod (--ranks-per-pod).")
    for values, pattern, flag, example in (
        (given.volumes, _VOLUME, "--volume", "data:/work"), (given.environ, _ENVIRON, "--env", "DATA=/work/data"),
    ):  # fmt: skip
        for one in values:
            if not pattern.fullmatch(one):
                raise SettingError(f"{flag} is {one!r}; it must look like {example}.")
    name = given.name or _name_of(target)
    names = [word for one in given.environ for word in ("-x", one.partition("=")[0])]
    flags = settings_module.as_flags(given.flags)
    words = ["run", "-n", str(given.ranks), "--hosts-file", _HOSTS, *names, *flags, *map(_literal, target.words)]
    metadata = {"name": name, **({"namespace": given.namespace} if given.namespace else {})}
    if given.mpijob:
        return [_mpi_job(given, metadata, words)]
    return [_runtime(given, metadata), _train_job(given, metadata, words)]


def _literal(word: str) -> str:
    """A word in which Kubernetes would put the value of a variable."""
    return word.replace("$(", "$$(")


def _name_of(target: Target) -> str:
    stem = target.name if target.is_module else Path(target.name).stem
    made = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    return (made if made[:1].isalpha() else f"job-{made}".strip("-"))[:_MOST_LETTERS].rstrip("-")


def _pod(given: argparse.Namespace, *, trains: bool, words: Sequence[str] = ()) -> _Tree:
    """What a pod is: one that trains, or the one that starts the ranks. Args: words: of `matex-tf`, for the latter."""
    container: _Tree = {"name": "node", "image": given.image}
    if trains:
        container |= {"command": ["sh", "-c", _WAITS], "readinessProbe": {"tcpSocket": {"port": 22}}}
        asked = {"cpu": given.cpu, "memory": given.memory, "nvidia.com/gpu": str(given.gpus or "")}
        if limits := {what: amount for what, amount in asked.items() if amount}:
            container["resources"] = {"requests": limits, "limits": limits}
    else:
        container |= {"command": ["matex-tf"], **({"args": list(words)} if words else {})}
        environ = [one.partition("=")[::2] for one in ("PRTE_MCA_prte_keep_fqdn_hostnames=true", *given.environ)]
        container["env"] = [{"name": name, "value": _literal(value)} for name, value in environ]
    places = [one.split(":", 1) for one in given.volumes]
    if places:
        container["workingDir"] = places[0][1]
    volumes: list[_Tree] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": given.shm}}]
    volumes += [
        {"name": f"volume-{n}", "persistentVolumeClaim": {"claimName": claim}} for n, (claim, _) in enumerate(places)
    ]
    container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    container["volumeMounts"] += [{"name": f"volume-{n}", "mountPath": path} for n, (_, path) in enumerate(places)]
    return {"restartPolicy": "Never", "containers": [container], "volumes": volumes}


def _runtime(given: argparse.Namespace, metadata: _Tree) -> _Tree:
    def job(name: str, pod: _Tree, labels: _Tree, **more: Any) -> _Tree:
        meta = {"metadata": {"labels": labels}} if labels else {}
        spec = {"backoffLimit": 0, "template": {"spec": pod}}  # a script that fails would run once more
        return {"name": name, **more, "template": {**meta, "spec": spec}}

    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    jobs = [
        job("node", _pod(given, trains=True), {}),
        job("launcher", _pod(given, trains=False), step, dependsOn=[{"name": "node", "status": "Ready"}]),
    ]
    mpi = {"mpiImplementation": "OpenMPI", "numProcPerNode": given.each, "sshAuthMountPath": _KEYS}
    over = {"operator": "All", "targetReplicatedJobs": ["launcher"]}
    spec = {"network": {"publishNotReadyAddresses": True}, "successPolicy": over, "replicatedJobs": jobs}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {**metadata, "labels": {"trainer.kubeflow.org/framework": "matex-tf"}},
        "spec": {"mlPolicy": {"numNodes": given.ranks // given.each, "mpi": mpi}, "template": {"spec": spec}},
    }


def _train_job(given: argparse.Namespace, metadata: _Tree, words: Sequence[str]) -> _Tree:
    trainer = {
        "numNodes": given.ranks // given.each,
        "numProcPerNode": given.each,
        "command": ["matex-tf"],
        "args": list(words),
    }
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": metadata["name"]}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {"runtimeRef": reference, "trainer": trainer},
    }


def _mpi_job(given: argparse.Namespace, metadata: _Tree, words: Sequence[str]) -> _Tree:
    def replicas(count: int, pod: _Tree) -> _Tree:
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}

    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata,
        "spec": {
            "slotsPerWorker": given.each,
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": _KEYS,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
            "mpiReplicaSpecs": {
                "Launcher": replicas(1, _pod(given, trains=False, words=words)),
                "Worker": replicas(given.ranks // given.each, _pod(given, trains=True)),
            },
        },
    }


def _yaml(value: Any) -> Iterator[str]:
    """The lines of a tree. JSON's texts are YAML's too."""
    if isinstance(value, dict):
        for key, inner in value.items():
            deeper = isinstance(inner, (dict, list)) and bool(inner)
            yield f"{key}:" if deeper else f"{key}: {_scalar(inner)}"
            yield from (f"  {line}" for line in (_yaml(inner) if deeper else ()))
        return
    for inner in value:
        if not isinstance(inner, dict):
            yield f"- {_scalar(inner)}"
            continue
        for number, line in enumerate(_yaml(inner)):
            yield f"{'  ' if number else '- '}{line}"


def _scalar(value: Any) -> str:
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT
    return value if plain else json.dumps(value)
