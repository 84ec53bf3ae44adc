# right: `python -m PACKAGE` whose module imports mpi4py is one job of N ranks
from . import communicator

world = communicator.world
print("PASS" if world.size > 1 else "FAIL", "rank", world.rank, "of", world.size)
