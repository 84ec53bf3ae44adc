/*
 * interpose.c: the MPI functions that the shim stands in for, by their C names, but for the collectives (collectives.c).
 */
#include "shim.h"

/* ---- start and end ---- */

int MPI_Init(int *argc, char ***argv)
{
    int outcome = PMPI_Init(argc, argv);
    if (outcome == MPI_SUCCESS)
        shim_start();
    return outcome;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int outcome = PMPI_Init_thread(argc, argv, required, provided);
    if (outcome == MPI_SUCCESS)
        shim_start();
    return outcome;
}

int MPI_Finalize(void)
{
    shim_stop();
    return PMPI_Finalize();
}

/* ---- memory ---- */

int MPI_Alloc_mem(MPI_Aint size, MPI_Info info, void *baseptr)
{
    void *memory = allocation_take(size);
    if (memory == NULL)
        return PMPI_Alloc_mem(size, info, baseptr);
    *(void **)baseptr = memory;
    return MPI_SUCCESS;
}

int MPI_Free_mem(void *base)
{
    return allocation_give(base) ? MPI_SUCCESS : PMPI_Free_mem(base);
}

/* ---- completion ---- */

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    struct completion call;
    if (!completion_begin(&call, 1, request, WAIT_ALL))
        return PMPI_Wait(request, status);
    return completion_end_one(&call, PMPI_Wait(request, status), status);
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    struct completion call;
    if (!completion_begin(&call, 1, request, TEST))
        return PMPI_Test(request, flag, status);
    return completion_end_one(&call, PMPI_Test(request, flag, status), status);
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
    struct completion call;
    if (!completion_begin(&call, count, requests, WAIT_ANY))
        return PMPI_Waitany(count, requests, index, status);
    return completion_end_one(&call, PMPI_Waitany(count, requests, index, status), status);
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
    struct completion call;
    if (!completion_begin(&call, count, requests, TEST))
        return PMPI_Testany(count, requests, index, flag, status);
    return completion_end_one(&call, PMPI_Testany(count, requests, index, flag, status), status);
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
    struct completion call;
    if (!completion_begin(&call, count, requests, WAIT_ALL))
        return PMPI_Waitall(count, requests, statuses);
    return completion_end_all(&call, PMPI_Waitall(count, requests, statuses), statuses);
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
    struct completion call;
    if (!completion_begin(&call, count, requests, TEST))
        return PMPI_Testall(count, requests, flag, statuses);
    return completion_end_all(&call, PMPI_Testall(count, requests, flag, statuses), statuses);
}

int MPI_Waitsome(int incount, MPI_Request requests[], int *outcount, int indices[], MPI_Status statuses[])
{
    struct completion call;
    if (!completion_begin(&call, incount, requests, WAIT_ANY))
        return PMPI_Waitsome(incount, requests, outcount, indices, statuses);
    int outcome = PMPI_Waitsome(incount, requests, outcount, indices, statuses);
    return completion_end_some(&call, outcome, *outcount, indices, statuses);
}

int MPI_Testsome(int incount, MPI_Request requests[], int *outcount, int indices[], MPI_Status statuses[])
{
    struct completion call;
    if (!completion_begin(&call, incount, requests, TEST))
        return PMPI_Testsome(incount, requests, outcount, indices, statuses);
    int outcome = PMPI_Testsome(incount, requests, outcount, indices, statuses);
    return completion_end_some(&call, outcome, *outcount, indices, statuses);
}

/* ---- persistent requests ---- */

int MPI_Start(MPI_Request *request)
{
    int outcome;
    return request_start(request, &outcome) ? outcome : PMPI_Start(request);
}

int MPI_Startall(int count, MPI_Request requests[])
{
    int outcome = MPI_SUCCESS;
    for (int i = 0; i < count && outcome == MPI_SUCCESS; i++)
        outcome = MPI_Start(&requests[i]);
    return outcome;
}

int MPI_Request_free(MPI_Request *request)
{
    request_forget(*request);
    return PMPI_Request_free(request);
}

/* ---- communicators ---- */

static int with_group(int outcome, const MPI_Comm *made)
{
    if (outcome == MPI_SUCCESS)
        group_attach(*made);
    return outcome;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *newcomm)
{
    return with_group(PMPI_Comm_dup(comm, newcomm), newcomm);
}

int MPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm)
{
    return with_group(PMPI_Comm_dup_with_info(comm, info, newcomm), newcomm);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *newcomm)
{
    return with_group(PMPI_Comm_split(comm, color, key, newcomm), newcomm);
}

int MPI_Comm_split_type(MPI_Comm comm, int split_type, int key, MPI_Info info, MPI_Comm *newcomm)
{
    return with_group(PMPI_Comm_split_type(comm, split_type, key, info, newcomm), newcomm);
}

int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *newcomm)
{
    return with_group(PMPI_Comm_create(comm, group, newcomm), newcomm);
}

int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *newcomm)
{
    return with_group(PMPI_Comm_create_group(comm, group, tag, newcomm), newcomm);
}

int MPI_Cart_create(MPI_Comm old_comm, int ndims, const int dims[], const int periods[], int reorder,
                    MPI_Comm *comm_cart)
{
    return with_group(PMPI_Cart_create(old_comm, ndims, dims, periods, reorder, comm_cart), comm_cart);
}

int MPI_Cart_sub(MPI_Comm comm, const int remain_dims[], MPI_Comm *new_comm)
{
    return with_group(PMPI_Cart_sub(comm, remain_dims, new_comm), new_comm);
}

int MPI_Graph_create(MPI_Comm comm_old, int nnodes, const int index[], const int edges[], int reorder,
                     MPI_Comm *comm_graph)
{
    return with_group(PMPI_Graph_create(comm_old, nnodes, index, edges, reorder, comm_graph), comm_graph);
}

int MPI_Dist_graph_create(MPI_Comm comm_old, int n, const int nodes[], const int degrees[], const int targets[],
                          const int weights[], MPI_Info info, int reorder, MPI_Comm *newcomm)
{
    return with_group(PMPI_Dist_graph_create(comm_old, n, nodes, degrees, targets, weights, info, reorder, newcomm),
                      newcomm);
}

int MPI_Dist_graph_create_adjacent(MPI_Comm comm_old, int indegree, const int sources[], const int sourceweights[],
                                   int outdegree, const int destinations[], const int destweights[], MPI_Info info,
                                   int reorder, MPI_Comm *comm_dist_graph)
{
    return with_group(PMPI_Dist_graph_create_adjacent(comm_old, indegree, sources, sourceweights, outdegree,
                                                      destinations, destweights, info, reorder, comm_dist_graph),
                      comm_dist_graph);
}

int MPI_Intercomm_merge(MPI_Comm intercomm, int high, MPI_Comm *newintercomm)
{
    return with_group(PMPI_Intercomm_merge(intercomm, high, newintercomm), newintercomm);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    group_drain_comm(*comm);
    return PMPI_Comm_free(comm);
}

int MPI_Comm_disconnect(MPI_Comm *comm)
{
    group_drain_comm(*comm);
    return PMPI_Comm_disconnect(comm);
}
