"""Trainings that change while they run: neurons that go and come; `samples`: rows that wait.

It may import core, storage and exchange, and knows Keras; patches and cli may import it. Start reading in surgery.py.
"""
