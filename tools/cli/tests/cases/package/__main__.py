# right: `python -m PACKAGE` whose module imports mpi4py is one job of N ranks
import sys

from . import communicator

world = communicator.world
verdict = "PASS" if world.size > 1 else "FAIL"
sys.stdout.write(f"{verdict} rank {world.rank} of {world.size}\n")
