/*
 * persistent.c: persistent collectives: an MPI request that posts the offloaded call whenever it is started.
 *
 * Generalized requests cannot be started again. So the MPI request is a persistent receive of an empty message, on a
 * communicator of this rank alone. The rank sends the message to itself when the collective has ended. So the functions
 * that wait and test need no special case.
 *
 * Persistent requests may be started in any order, which may differ between ranks (MPI 4.1, 6.13). So each request has
 * a group of its own, in which no other calls occur.
 *
 *   state     entered by                              left by
 *   inactive  the _init call, or MPI's own completion MPI_Start, MPI_Request_free
 *   active    MPI_Start                               the message, sent when the collective has ended
 *
 * Invariant: an active request has exactly one message to come.
 */
#include <stdlib.h>
#include <string.h>

#include "persistent.h"
#include "backlog.h"
#include "errors.h"
#include "groups.h"
#include "kept_call.h"
#include "methods.h"
#include "posting.h"
#include "requests.h"
#include "shim.h"
#include "timings.h"

struct persistent {
    struct kept_call *kept; /* posted whenever the request is started */
    struct group *group;    /* of this request alone */
    uint64_t bytes;         /* the bytes that all ranks know */
    int tag;                /* of the message that completes the request */
};

static int tag_limit;
static atomic_uint tags_used;

int persistent_start(int *largest_tag)
{
    int *limit, found = 0, code = mpi.Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
    *largest_tag = tag_limit = found ? *limit : 32767;
    return code;
}

void persistent_free(struct persistent *persistent)
{
    kept_call_free(persistent->kept);
    if (persistent->group != NULL)
        group_drop(persistent->group);
    free(persistent);
}

const struct call *persistent_call(const struct persistent *persistent)
{
    return &persistent->kept->call;
}

int request_make_persistent(const struct posting *posting, MPI_Request *request)
{
    struct op *op = calloc(1, sizeof *op);
    struct persistent *persistent = calloc(1, sizeof *persistent);
    if (op == NULL || persistent == NULL) {
        free(op);
        free(persistent);
        group_drop(posting->group);
        return MPI_ERR_NO_MEM;
    }
    *persistent = (struct persistent){.group = posting->group, .bytes = posting->bytes};
    persistent->tag = (int)(atomic_fetch_add(&tags_used, 1) % (unsigned)tag_limit);
    *op = (struct op){.comm = posting->call->comm, .persistent = persistent};
    atomic_init(&op->holders, 1);
    atomic_init(&op->ended, true);
    int code = kept_call_make(posting, true, &persistent->kept);
    if (code == MPI_SUCCESS)
        code = mpi.Recv_init(NULL, 0, MPI_BYTE, 0, persistent->tag, requests_self(), &op->request);
    if (code != MPI_SUCCESS) {
        op_release(op);
        return code;
    }
    *request = op->request;
    op_register(op);
    return MPI_SUCCESS;
}

static void send_completion(int tag)
{
    mpi.Send(NULL, 0, MPI_BYTE, 0, tag, requests_self());
}

void persistent_complete(struct op *op)
{
    int tag = op->persistent->tag;
    atomic_store(&op->ended, true);
    send_completion(tag);
}

void persistent_drop_group(struct op *op)
{
    group_drop(op->persistent->group);
    op->persistent->group = NULL;
}

bool request_start(MPI_Request *request, int *outcome)
{
    struct posting posting;
    struct op *op = op_of(*request);
    if (op == NULL || op->persistent == NULL)
        return false;
    const struct persistent *persistent = op->persistent;
    MPI_Comm comm = op->comm;
    /* A callback of MPI_COMM_SELF in MPI_Finalize starts a request: the service process is gone, so the call fails. */
    int code = persistent->group == NULL ? MPI_ERR_REQUEST : mpi.Start(request);
    if (code == MPI_SUCCESS) {
        posting_init(&posting, &persistent->kept->call, persistent->group, persistent->bytes);
        code = backlog_post_or_keep(op, &posting, PERSISTENT);
        if (code != MPI_SUCCESS)
            send_completion(persistent->tag);
    }
    *outcome = code == MPI_SUCCESS ? code : error_raise(comm, code);
    return true;
}

void request_release(MPI_Request request)
{
    timings_remove(request);
    struct op *op = op_of(request);
    if (op == NULL || op->persistent == NULL)
        return;
    op_unregister(op);
    op_release(op);
}
