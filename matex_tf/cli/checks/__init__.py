"""What `matex-tf doctor` looks at beside Python and MPI: what each MPI can do, and the GPUs of this machine.

It may import launch. Start reading in finding.py.
"""
