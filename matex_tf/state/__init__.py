"""What is kept where no signature hands it on: for the run of this process, and beside objects that are not ours.

It may import nothing of ours. Start reading in notes.py.
"""
