"""What `matex-tf kube` prints is what the operators of Kubernetes take, and starts the ranks that were asked for."""

import re

import pytest
import yaml

from matex_tf.cli.main import main

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")

#: What the custom resources have, as far as it is printed: patterns of texts, numbers, lists; "!" is for what must be
#: there. From trainer.kubeflow.org/v1alpha1, jobset.x-k8s.io/v1alpha2, kubeflow.org/v2beta1 and core/v1.
ANY = re.compile(r".+", re.DOTALL)
MOUNT = {"name!": NAME, "mountPath!": re.compile(r"/.*")}
VOLUME = {
    "name!": NAME,
    "emptyDir": {"medium": re.compile("Memory|"), "sizeLimit": QUANTITY},
    "persistentVolumeClaim": {"claimName!": ANY},
}
AMOUNTS = {"cpu": QUANTITY, "memory": QUANTITY, "nvidia.com/gpu": re.compile(r"\d+")}
CONTAINER = {
    "name!": NAME,
    "image": ANY,
    "command": [ANY],
    "args": [ANY],
    "env": [{"name!": re.compile(r"[A-Za-z_]\w*"), "value": ANY}],
    "workingDir": re.compile(r"/.*"),
    "resources": {"requests": AMOUNTS, "limits": AMOUNTS},
    "volumeMounts": [MOUNT],
    "readinessProbe": {"tcpSocket": {"port!": 1}},
}
POD = {"spec": {"restartPolicy": re.compile("Never|OnFailure"), "containers!": [CONTAINER], "volumes": [VOLUME]}}
METADATA = {"name!": NAME, "namespace": NAME, "labels": {"trainer.kubeflow.org/framework": NAME}}
LABELS = {"trainer.kubeflow.org/trainjob-ancestor-step": re.compile("trainer|dataset-initializer|model-initializer")}
REPLICATED = {
    "name!": NAME,
    "dependsOn": [{"name!": NAME, "status!": re.compile("Ready|Complete")}],
    "template!": {"metadata": {"labels": LABELS}, "spec": {"backoffLimit": 0, "template!": POD}},
}
JOB_SET = {
    "network": {"publishNotReadyAddresses": True},
    "successPolicy": {"operator!": re.compile("All|Any"), "targetReplicatedJobs": [NAME]},
    "replicatedJobs": [REPLICATED],
}
MPI = {"mpiImplementation": re.compile("OpenMPI"), "numProcPerNode": 1, "sshAuthMountPath": ANY}
REPLICAS = {"replicas": 1, "restartPolicy": re.compile("Always|OnFailure|Never|ExitCode"), "template": POD}
KINDS = {
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): {
        "mlPolicy": {"numNodes": 1, "mpi": MPI},
        "template!": {"spec": JOB_SET},
    },
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {
        "runtimeRef!": {"name!": NAME, "apiGroup": ANY, "kind": re.compile("TrainingRuntime|ClusterTrainingRuntime")},
        "trainer": {"command": [ANY], "args": [ANY], "numNodes": 1, "numProcPerNode": 1},
    },
    ("kubeflow.org/v2beta1", "MPIJob"): {
        "slotsPerWorker": 1,
        "mpiImplementation": re.compile("OpenMPI|Intel|MPICH"),
        "sshAuthMountPath": ANY,
        "launcherCreationPolicy": re.compile("AtStartup|WaitForWorkersReady"),
        "runPolicy": {"cleanPodPolicy": re.compile("All|Running|None"), "backoffLimit": 0},
        "mpiReplicaSpecs!": {"Launcher": REPLICAS, "Worker": REPLICAS},
    },
}


def check(value, schema, where):
    """A value has what a schema says, and nothing else."""
    if isinstance(schema, dict):
        assert isinstance(value, dict), where
        known = {key.rstrip("!"): inner for key, inner in schema.items()}
        assert set(value) <= set(known), (where, set(value) - set(known))
        assert not {key[:-1] for key in schema if key.endswith("!")} - set(value), where
        for key, inner in value.items():
            check(inner, known[key], f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list) and value, where
        for inner in value:
            check(inner, schema[0], where)
    elif isinstance(schema, re.Pattern):
        assert isinstance(value, str) and schema.fullmatch(value), (where, value)
    else:
        assert type(value) is type(schema) and value >= 0, (where, value)


def printed(capsys, *words):
    assert main(["kube", *words]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    for one in found:
        spec = KINDS[one["apiVersion"], one["kind"]]
        check(one, {"apiVersion!": ANY, "kind!": ANY, "metadata!": METADATA, "spec!": spec}, one["kind"])
    return found


ALL = [
    *("-n", "6", "--ranks-per-pod", "2", "--cpu", "500m", "--memory", "8Gi", "--gpus", "1", "--namespace", "lab"),
    *("--volume", "work:/work", "--volume", "data:/data", "--env", "NOTE=a: b #c\n", "--env", "ON=on"),
]


def test_train_job(capsys):
    """A TrainJob, and the runtime that it names: pods with sshd, and one that starts the ranks once they are ready."""
    runtime, job = printed(capsys, "train.py", *ALL, "--faults", "shrink", "--", "--epochs", "3", "$(date)")
    assert [one["kind"] for one in (runtime, job)] == ["TrainingRuntime", "TrainJob"]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == job["metadata"]["name"] == "train"
    assert job["metadata"]["namespace"] == runtime["metadata"]["namespace"] == "lab"
    trainer = job["spec"]["trainer"]
    assert trainer["numNodes"] * trainer["numProcPerNode"] == 6 and trainer["numNodes"] == 3
    assert trainer["args"][-4:] == ["train.py", "--epochs", "3", "$$(date)"]
    node, launcher = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert launcher["dependsOn"] == [{"name": node["name"], "status": "Ready"}]
    assert launcher["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    trains, starts = (one["template"]["spec"]["template"]["spec"]["containers"][0] for one in (node, launcher))
    assert trains["name"] == starts["name"] == "node"  # keys are mounted in containers of this name alone
    assert trains["resources"]["limits"] == {"cpu": "500m", "memory": "8Gi", "nvidia.com/gpu": "1"}
    assert "resources" not in starts and trains["workingDir"] == starts["workingDir"] == "/work"
    assert {"name": "NOTE", "value": "a: b #c\n"} in starts["env"] and {"name": "ON", "value": "on"} in starts["env"]


def test_mpi_job(capsys, tmp_path, monkeypatch):
    """The same for the older operator; what its launcher runs, matex-tf takes."""
    (job,) = printed(capsys, "--mpijob", *ALL, "My_2nd Train.py")
    assert job["metadata"]["name"] == "my-2nd-train"
    launcher, worker = (job["spec"]["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    assert launcher["replicas"] == 1 and worker["replicas"] * job["spec"]["slotsPerWorker"] == 6
    container = launcher["template"]["spec"]["containers"][0]
    hosts = tmp_path / "hostfile"
    hosts.write_text("".join(f"train-worker-{n}.train.lab.svc slots=2\n" for n in range(3)))
    (tmp_path / "My_2nd Train.py").touch()
    monkeypatch.chdir(tmp_path)
    for one in container["env"]:
        monkeypatch.setenv(one["name"], one["value"])
    words = [str(hosts) if word == "/etc/mpi/hostfile" else word for word in container["args"]]
    assert main([words[0], "--dry-run", *words[1:]]) == 0
    line = capsys.readouterr().out
    assert "train-worker-0.train.lab.svc:2,train-worker-1.train.lab.svc:2" in line and "-n 6" in line


@pytest.mark.parametrize(
    "words, why",
    [
        (["train.py"], "how many ranks"),
        (["train.py", "-n", "0"], "-n is '0'"),
        (["train.py", "-n", "3", "--ranks-per-pod", "2"], "-n 3 ranks cannot be 2 in each pod"),
        (["train.py", "-n", "2", "--memory", "4GB"], "--memory is '4GB'; it must be an amount of Kubernetes"),
        (["train.py", "-n", "2", "--memory", "4"], "--memory is '4'"),
        (["train.py", "-n", "2", "--memory", "0Gi"], "--memory is '0Gi'"),
        (["train.py", "-n", "2", "--cpu", "four"], "--cpu is 'four'; it must be a number of cores"),
        (["train.py", "-n", "2", "--cpu", "0"], "--cpu is '0'"),
        (["train.py", "-n", "2", "--image", "a b"], "--image is 'a b'"),
        (["train.py", "-n", "2", "--name", "Train"], "--name is 'Train'; it must begin with"),
        (["train.py", "-n", "2", "--volume", "work"], "--volume is 'work'; it must look like data:/work"),
        (["train.py", "-n", "2", "--env", "DATA"], "--env is 'DATA'; it must look like"),
        (["train.py", "-n", "2", "--epochs", "3"], "those of the script come after --"),
        (["-n", "2", "-c", "print()"], "-c is in no file that pods could read"),
        (["-n", "2", "--faults", "maybe", "train.py"], "--faults is 'maybe'"),
    ],
)
def test_refused(capsys, words, why):
    """In words, before anything is printed."""
    assert main(["kube", *words]) == 2
    said = capsys.readouterr()
    assert why in said.err and not said.out
