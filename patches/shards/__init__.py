"""Variables that lie in parts on the ranks, such as an optimizer's slots, and what shows them whole.

`variable.py`: one variable; `slots.py`: which of a model's; `serving.py`: what the others do while one rank reads;
`pending.py`: large ones before they lie in parts.

It may import core, patches.common and patches.partition. Start reading in variable.py.
"""
