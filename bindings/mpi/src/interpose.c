/*
 * interpose.c: the MPI functions of the shim, except the collectives (collectives.c).
 */
#include "allocation.h"
#include "binding.h"
#include "choice.h"
#include "communicators.h"
#include "completion.h"
#include "interposed.h"
#include "lifetime.h"
#include "operators.h"
#include "persistent.h"
#include "requests.h"

/* ---- start and end ---- */

static int start_on_success(int outcome)
{
    if (outcome == MPI_SUCCESS)
        shim_start();
    return outcome;
}

static int shim_Init(int *argc, char ***argv)
{
    return CALLED_BY_MPI ? mpi.Init(argc, argv) : start_on_success(mpi.Init(argc, argv));
}

static int shim_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int outcome = mpi.Init_thread(argc, argv, required, provided);
    return CALLED_BY_MPI ? outcome : start_on_success(outcome);
}

static int shim_Finalize(void)
{
    if (!CALLED_BY_MPI)
        shim_stop();
    return mpi.Finalize();
}

/* ---- memory ---- */

static int shim_Alloc_mem(MPI_Aint size, MPI_Info info, void *baseptr)
{
    void *memory = CALLED_BY_MPI ? NULL : allocation_make(size);
    if (memory == NULL)
        return mpi.Alloc_mem(size, info, baseptr);
    *(void **)baseptr = memory;
    return MPI_SUCCESS;
}

static int shim_Free_mem(void *base)
{
    return allocation_free(base) ? MPI_SUCCESS : mpi.Free_mem(base);
}

/* ---- completion ---- */

/* The value that an MPI function has returned through `value`; a NULL pointer is an error of the program. */
static int value_or_zero(const int *value)
{
    return value == NULL ? 0 : *value;
}

/* If a request of the shim and one of MPI are waited for, `test` is tried between looks at the shim's own, and `done`
 * says that it has completed something. */
#define COMPLETION(name, count, wait_kind, parameters, arguments, test, done, end)                                     \
    static int shim_##name parameters                                                                                  \
    {                                                                                                                  \
        struct completion call;                                                                                        \
        if (!completion_begin(&call, count, requests, wait_kind))                                                      \
            return mpi.name arguments;                                                                                 \
        int outcome = MPI_SUCCESS;                                                                                     \
        bool complete = false;                                                                                         \
        while (!complete && completion_pends(&call)) {                                                                 \
            outcome = test;                                                                                            \
            complete = outcome != MPI_SUCCESS || (done);                                                               \
        }                                                                                                              \
        if (!complete)                                                                                                 \
            outcome = mpi.name arguments;                                                                              \
        return end;                                                                                                    \
    }

COMPLETION(Wait, 1, WAIT_ALL, (MPI_Request * requests, MPI_Status *status), (requests, status), MPI_SUCCESS, false,
           completion_end_one(&call, outcome, 0, status))

COMPLETION(Test, 1, TEST, (MPI_Request * requests, int *flag, MPI_Status *status), (requests, flag, status),
           MPI_SUCCESS, false, completion_end_one(&call, outcome, value_or_zero(flag) ? 0 : MPI_UNDEFINED, status))

COMPLETION(Waitany, count, WAIT_ANY, (int count, MPI_Request *requests, int *index, MPI_Status *status),
           (count, requests, index, status), mpi.Testany(count, requests, index, &call.flag, status), call.flag,
           completion_end_one(&call, outcome, value_or_zero(index), status))

COMPLETION(Testany, count, TEST, (int count, MPI_Request *requests, int *index, int *flag, MPI_Status *status),
           (count, requests, index, flag, status), MPI_SUCCESS, false,
           completion_end_one(&call, outcome, value_or_zero(flag) ? value_or_zero(index) : MPI_UNDEFINED, status))

COMPLETION(Waitall, count, WAIT_ALL, (int count, MPI_Request *requests, MPI_Status *statuses),
           (count, requests, statuses), MPI_SUCCESS, false,
           completion_end_some(&call, outcome, count, NULL, statuses))

COMPLETION(Testall, count, TEST, (int count, MPI_Request *requests, int *flag, MPI_Status *statuses),
           (count, requests, flag, statuses), MPI_SUCCESS, false,
           completion_end_some(&call, outcome, value_or_zero(flag) ? count : 0, NULL, statuses))

COMPLETION(Waitsome, count, WAIT_ANY,
           (int count, MPI_Request *requests, int *outcount, int *indices, MPI_Status *statuses),
           (count, requests, outcount, indices, statuses),
           mpi.Testsome(count, requests, outcount, indices, statuses), value_or_zero(outcount) != 0,
           completion_end_some(&call, outcome, value_or_zero(outcount), indices, statuses))

COMPLETION(Testsome, count, TEST,
           (int count, MPI_Request *requests, int *outcount, int *indices, MPI_Status *statuses),
           (count, requests, outcount, indices, statuses), MPI_SUCCESS, false,
           completion_end_some(&call, outcome, value_or_zero(outcount), indices, statuses))

static int shim_Request_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
    requests_collect();
    return mpi.Request_get_status(request, flag, status);
}

static int shim_Request_get_status_all(int count, const MPI_Request *requests, int *flag, MPI_Status *statuses)
{
    requests_collect();
    return mpi.Request_get_status_all(count, requests, flag, statuses);
}

static int shim_Request_get_status_any(int count, const MPI_Request *requests, int *index, int *flag,
                                       MPI_Status *status)
{
    requests_collect();
    return mpi.Request_get_status_any(count, requests, index, flag, status);
}

static int shim_Request_get_status_some(int count, const MPI_Request *requests, int *outcount, int *indices,
                                        MPI_Status *statuses)
{
    requests_collect();
    return mpi.Request_get_status_some(count, requests, outcount, indices, statuses);
}

/* A request that the program has freed still ends: a program that looks for it may call this function meanwhile. */
static int shim_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status)
{
    requests_collect();
    return mpi.Iprobe(source, tag, comm, flag, status);
}

/* A collective cannot be cancelled (MPI 4.1, 3.8.4); it goes on. */
static int shim_Cancel(MPI_Request *request)
{
    return request_refuse_cancel(*request) ? MPI_ERR_REQUEST : mpi.Cancel(request);
}

/* ---- persistent requests ---- */

static int shim_Start(MPI_Request *request)
{
    int outcome;
    return request_start(request, &outcome) ? outcome : mpi.Start(request);
}

static int shim_Startall(int count, MPI_Request *requests)
{
    int outcome = MPI_SUCCESS;
    for (int i = 0; i < count && outcome == MPI_SUCCESS; i++)
        outcome = shim_Start(&requests[i]);
    return outcome;
}

static int shim_Request_free(MPI_Request *request)
{
    request_release(*request);
    return mpi.Request_free(request);
}

/* ---- operators and datatypes of the program ---- */

static int shim_Op_free(MPI_Op *op)
{
    if (op == NULL || !own_operator_keep_op(*op))
        return mpi.Op_free(op);
    *op = MPI_OP_NULL;
    return MPI_SUCCESS;
}

static int shim_Type_free(MPI_Datatype *type)
{
    if (type == NULL || !own_operator_keep_type(*type))
        return mpi.Type_free(type);
    *type = MPI_DATATYPE_NULL;
    return MPI_SUCCESS;
}

/* ---- communicators ---- */

/* The MPI library makes the communicator, and the shim registers it. */
#define CONSTRUCTOR(name)                                                                                              \
    static int shim_##name(MPI_Comm comm, BETWEEN_##name(PARAMETER) MPI_Comm *made)                                    \
    {                                                                                                                  \
        int outcome = mpi.name(comm, BETWEEN_##name(ARGUMENT) made);                                                   \
        if (outcome == MPI_SUCCESS && !CALLED_BY_MPI)                                                                  \
            communicator_made(*made);                                                                                  \
        return outcome;                                                                                                \
    }

CONSTRUCTORS(CONSTRUCTOR)

#define DESTRUCTOR(name)                                                                                               \
    static int shim_##name(MPI_Comm *comm)                                                                             \
    {                                                                                                                  \
        MPI_Comm previous = communicator_begin_free(*comm);                                                            \
        int outcome = mpi.name(comm);                                                                                  \
        communicator_end_free(previous);                                                                               \
        return outcome;                                                                                                \
    }

DESTRUCTOR(Comm_free)
DESTRUCTOR(Comm_disconnect)

#define ENTRY(name) {#name, (any_function *)shim_##name},
const struct interposed others_interposed[] = {OTHERS(ENTRY) CONSTRUCTORS(ENTRY){NULL, NULL}};
