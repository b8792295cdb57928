"""What features do around each step of a model: the class that they derive, and how theirs are found.

It may import patches and what `patches.common` may. Start reading in step_part.py.
"""
