"""`python -m matex_tf SCRIPT ARGS…`: what mpirun or srun starts, once for each rank."""

import sys

from matex_tf.core.starting import start_again_with_hash_seed, take_stdin

if __name__ == "__main__":
    start_again_with_hash_seed(sys.orig_argv)
    take_stdin()
    from matex_tf.features import registry
    from matex_tf.job import layered
    from matex_tf.launch import garbage

    garbage.install()
    registry.enter(sys.argv[1:])
    mounts = layered.enter(sys.argv[1:])
    from matex_tf.job.run import main

    sys.exit(main(sys.argv[1:], mounts))
