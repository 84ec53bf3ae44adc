# right: a script whose own helper module imports the MPI module is one job of N ranks
import importlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
world = importlib.import_module("package.communicator").world
verdict = "PASS" if world.size > 1 else "FAIL"
sys.stdout.write(f"{verdict} rank {world.rank} of {world.size}\nprefix {sys.prefix}\n")
