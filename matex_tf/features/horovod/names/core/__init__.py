"""What Horovod's public names stand on: collectives that wait for the other ranks, and their graphs.

It may import patches.common and exchange. Start reading in coordinator.py.
"""
