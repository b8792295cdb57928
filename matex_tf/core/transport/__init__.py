"""How messages get from one rank to another: each way is one class with the interface of communicator.py.

It may import core. Start reading in communicator.py.
"""
