"""`python -m matex_tf SCRIPT ARGS…`: what mpirun or srun starts, once for each rank."""

import sys

from matex_tf.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
