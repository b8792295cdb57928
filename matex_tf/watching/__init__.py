"""How far a running job is: what each rank counts, who gathers it, and what shows it.

It may import core and storage. Start reading in meter.py.
"""
