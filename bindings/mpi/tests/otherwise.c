/*
 * otherwise.c: preloaded before the shim, it pretends to be another MPI library than Open MPI, with other handles.
 */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

int PMPI_Get_library_version(char *version, int *length)
{
    strcpy(version, "MPICH Version: 4.0");
    *length = (int)strlen(version);
    return MPI_SUCCESS;
}

int PMPI_Comm_rank(MPI_Comm comm, int *rank)
{
    (void)comm;
    (void)rank;
    abort();
}

int PMPI_Comm_size(MPI_Comm comm, int *size)
{
    return PMPI_Comm_rank(comm, size);
}
