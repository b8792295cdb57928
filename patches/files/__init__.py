"""What a script does to files, and the programs that it starts: done once for the ranks that share a file system.

May import `world`, `settings` and the light modules of `patches`, and neither TensorFlow nor Keras: a script comes to
its first file before it imports them. Start reading in `once`; `calls` is the list of what is done so.
"""
