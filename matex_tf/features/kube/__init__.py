"""`matex-tf kube`: what Kubernetes needs to train a script on many pods.

It may import settings, job and features. Start reading in command.py.
"""

from matex_tf.features import Command, Feature


def register() -> Feature:
    """What this feature adds."""
    text = "print a job for Kubernetes: matex-tf kube train.py -n 4 | kubectl apply -f -"
    return Feature({"kube": Command(text, "matex_tf.features.kube.command", True)}, package="matex_tf")
