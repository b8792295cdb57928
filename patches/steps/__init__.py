"""What features do around each step of a model: the class that they derive, how theirs are found, and how far it is.

It may import strategies, watching, patches and what `patches.common` may. Start reading in step_part.py.
"""
