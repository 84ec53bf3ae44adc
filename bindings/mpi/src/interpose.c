/*
 * interpose.c: the MPI functions of the shim by their C names, except the collectives (collectives.c).
 */
#include "allocation.h"
#include "choice.h"
#include "communicators.h"
#include "completion.h"
#include "interposed.h"
#include "lifetime.h"
#include "persistent.h"

/* ---- start and end ---- */

static int start_on_success(int outcome)
{
    if (outcome == MPI_SUCCESS)
        shim_start();
    return outcome;
}

int MPI_Init(int *argc, char ***argv)
{
    return start_on_success(PMPI_Init(argc, argv));
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    return start_on_success(PMPI_Init_thread(argc, argv, required, provided));
}

int MPI_Finalize(void)
{
    shim_stop();
    return PMPI_Finalize();
}

/* ---- memory ---- */

int MPI_Alloc_mem(MPI_Aint size, MPI_Info info, void *baseptr)
{
    void *memory = allocation_make(size);
    if (memory == NULL)
        return PMPI_Alloc_mem(size, info, baseptr);
    *(void **)baseptr = memory;
    return MPI_SUCCESS;
}

int MPI_Free_mem(void *base)
{
    return allocation_free(base) ? MPI_SUCCESS : PMPI_Free_mem(base);
}

/* ---- completion ---- */

/* The value that an MPI function has returned through `value`; a NULL pointer is an error of the program. */
static int value_or_zero(const int *value)
{
    return value == NULL ? 0 : *value;
}

#define COMPLETION(name, count, wait_kind, parameters, arguments, end)                                                 \
    int MPI_##name parameters                                                                                          \
    {                                                                                                                  \
        struct completion call;                                                                                        \
        if (!completion_begin(&call, count, requests, wait_kind))                                                      \
            return PMPI_##name arguments;                                                                              \
        int outcome = PMPI_##name arguments;                                                                           \
        return end;                                                                                                    \
    }

COMPLETION(Wait, 1, WAIT_ALL, (MPI_Request * requests, MPI_Status *status), (requests, status),
           completion_end_one(&call, outcome, 0, status))

COMPLETION(Test, 1, TEST, (MPI_Request * requests, int *flag, MPI_Status *status), (requests, flag, status),
           completion_end_one(&call, outcome, value_or_zero(flag) ? 0 : MPI_UNDEFINED, status))

COMPLETION(Waitany, count, WAIT_ANY, (int count, MPI_Request requests[], int *index, MPI_Status *status),
           (count, requests, index, status), completion_end_one(&call, outcome, value_or_zero(index), status))

COMPLETION(Testany, count, TEST, (int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status),
           (count, requests, index, flag, status),
           completion_end_one(&call, outcome, value_or_zero(flag) ? value_or_zero(index) : MPI_UNDEFINED, status))

COMPLETION(Waitall, count, WAIT_ALL, (int count, MPI_Request requests[], MPI_Status statuses[]),
           (count, requests, statuses), completion_end_some(&call, outcome, count, NULL, statuses))

COMPLETION(Testall, count, TEST, (int count, MPI_Request requests[], int *flag, MPI_Status statuses[]),
           (count, requests, flag, statuses),
           completion_end_some(&call, outcome, value_or_zero(flag) ? count : 0, NULL, statuses))

COMPLETION(Waitsome, count, WAIT_ANY,
           (int count, MPI_Request requests[], int *outcount, int indices[], MPI_Status statuses[]),
           (count, requests, outcount, indices, statuses),
           completion_end_some(&call, outcome, value_or_zero(outcount), indices, statuses))

COMPLETION(Testsome, count, TEST,
           (int count, MPI_Request requests[], int *outcount, int indices[], MPI_Status statuses[]),
           (count, requests, outcount, indices, statuses),
           completion_end_some(&call, outcome, value_or_zero(outcount), indices, statuses))

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
    request_release(*request);
    return PMPI_Request_free(request);
}

/* ---- communicators ---- */

/* The hidden function makes the communicator, and the shim registers it. */
#define CONSTRUCTOR(Name, lower, upper)                                                                                \
    int MPI_##Name(MPI_Comm comm, BETWEEN_##lower(PARAMETER) MPI_Comm *made)                                           \
    {                                                                                                                  \
        int outcome = PMPI_##Name(comm, BETWEEN_##lower(ARGUMENT) made);                                               \
        if (outcome == MPI_SUCCESS)                                                                                    \
            communicator_made(*made);                                                                                  \
        return outcome;                                                                                                \
    }

CONSTRUCTORS(CONSTRUCTOR)
CONSTRUCTORS_WITH_LOGICALS(CONSTRUCTOR)

#define DESTRUCTOR(name)                                                                                               \
    int MPI_Comm_##name(MPI_Comm *comm)                                                                                \
    {                                                                                                                  \
        MPI_Comm previous = communicator_begin_free(*comm);                                                            \
        int outcome = PMPI_Comm_##name(comm);                                                                          \
        communicator_end_free(previous);                                                                               \
        return outcome;                                                                                                \
    }

DESTRUCTOR(free)
DESTRUCTOR(disconnect)
