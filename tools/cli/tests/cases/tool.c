/* right: a tool that wraps one function of a pair changes nothing; it counts what it sees. WRAPS: 1 starts and frees of
 * requests, 2 the end, 3 waits and tests, 4 communicators, 5 memory */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int seen;

#if WRAPS == 1
int MPI_Start(MPI_Request *request)
{
    seen++;
    return PMPI_Start(request);
}

int MPI_Request_free(MPI_Request *request)
{
    seen++;
    return PMPI_Request_free(request);
}
#elif WRAPS == 2
int MPI_Finalize(void)
{
    seen++;
    return PMPI_Finalize();
}
#elif WRAPS == 3
int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    seen++;
    return PMPI_Wait(request, status);
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
    seen++;
    return PMPI_Testall(count, requests, flag, statuses);
}
#elif WRAPS == 4
int MPI_Comm_free(MPI_Comm *comm)
{
    seen++;
    return PMPI_Comm_free(comm);
}
#else
int MPI_Free_mem(void *memory)
{
    seen++;
    return PMPI_Free_mem(memory);
}
#endif

static void __attribute__((destructor)) report(void)
{
    if (seen > 0)
        puts("the tool saw calls");
}
