"""What a script holds after the call has returned: open files, archives, databases, logs, running programs.

It may import what patches.files may, and once, callers and takeover of it. Start reading in opened.py.
"""
