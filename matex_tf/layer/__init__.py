"""A private layer for a rank over the directories that a script may change: it sees what it writes itself, and nobody
else does. By a mount namespace and overlayfs, which an ordinary user may have (Linux 5.11 and later).

It may import storage. Start reading in private_layer.py.
"""
