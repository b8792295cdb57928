"""What every layer above stands on: who we are (`world`), what is printed, the timeline of a run.

It may import settings, errors and storage. Start reading in world.py.
"""
