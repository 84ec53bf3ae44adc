from mpi4py import MPI

world = MPI.COMM_WORLD
