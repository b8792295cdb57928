"""What `matex-tf doctor` looks at beside Python and MPI: what each MPI can do, the GPUs of this machine, and more.

It may import launch and layer. Start reading in finding.py.
"""
