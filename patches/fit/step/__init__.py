"""One step of a model on this rank's rows of a batch: its graph, the state that it changes, what is checked of it.

It may import what fit may, but not fit. Start reading in shared_step.py.
"""
