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
#include "buffers.h"
#include "errors.h"
#include "groups.h"
#include "methods.h"
#include "posting.h"
#include "requests.h"
#include "shim.h"
#include "timings.h"

struct persistent {
    struct call call;         /* posted whenever the request is started */
    struct group *group;      /* of this request alone */
    uint64_t bytes;           /* the bytes that all ranks know */
    MPI_Datatype types[2];    /* duplicates of the program's datatypes, or none */
    int tag;                  /* of the message that completes the request */
    int64_t lists[];
};

static int tag_limit;
static atomic_uint tags_used;

int persistent_start(int *unused_tag)
{
    int *limit, found = 0, code = mpi.Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
    *unused_tag = tag_limit = found ? *limit : 32767;
    return code;
}

/* Whether an argument of the program is used here. On a rank that is not the root, or in place, some arguments are
 * ignored and may be anything. */
static bool is_used(const struct buffer *buffer, const struct user_buffer *user_buffer)
{
    return buffer->blocks > 0 && buffer->user.type == user_buffer->type;
}

/* Duplicates a datatype that the program may free before the call is posted again. */
static int copy_type(struct user_buffer *user_buffer, MPI_Datatype *persistent)
{
    int integers, addresses, types, combiner;
    int code = mpi.Type_get_envelope(user_buffer->type, &integers, &addresses, &types, &combiner);
    if (code != MPI_SUCCESS || combiner == MPI_COMBINER_NAMED)
        return code;
    code = mpi.Type_dup(user_buffer->type, persistent);
    if (code == MPI_SUCCESS)
        user_buffer->type = *persistent;
    return code;
}

/* Copies lists that the program may change before the call is posted again. */
static void copy_lists(struct user_buffer *user_buffer, int64_t *room, int ranks)
{
    size_t bytes = (size_t)ranks * (user_buffer->wide ? sizeof(int64_t) : sizeof(int));
    user_buffer->counts = memcpy(room, user_buffer->counts, bytes);
    if (user_buffer->displacements != NULL)
        user_buffer->displacements = memcpy(room + ranks, user_buffer->displacements, bytes);
}

static int copy_arguments(struct persistent *persistent, const struct posting *posting)
{
    const struct buffers *buffers = &posting->buffers;
    int ranks = posting->group->ranks;
    /* A reduction uses its lists on every rank; its datatypes are predefined. */
    bool reduces = persistent->call.collective == COLLECTIVE_reduce_scatter;
    struct user_buffer *all[2] = {&persistent->call.send, &persistent->call.receive};
    int code = MPI_SUCCESS;
    for (int i = 0; i < 2 && code == MPI_SUCCESS; i++) {
        const struct buffer *send = &buffers->send, *receive = &buffers->receive;
        const void *list = all[i]->counts;
        if (list != NULL && (reduces || (send->blocks > 0 && send->user.counts == list) ||
                             (receive->blocks > 0 && receive->user.counts == list)))
            copy_lists(all[i], persistent->lists + 2 * i * ranks, ranks);
        if (is_used(send, all[i]) || is_used(receive, all[i]))
            code = copy_type(all[i], &persistent->types[i]);
    }
    return code;
}

void persistent_free(struct persistent *persistent)
{
    for (int i = 0; i < 2; i++)
        if (persistent->types[i] != MPI_DATATYPE_NULL)
            mpi.Type_free(&persistent->types[i]);
    if (persistent->group != NULL)
        group_drop(persistent->group);
    free(persistent);
}

int request_make_persistent(const struct posting *posting, MPI_Request *request)
{
    int ranks = posting->group->ranks;
    struct op *op = calloc(1, sizeof *op);
    struct persistent *persistent = malloc(sizeof *persistent + 4 * (size_t)ranks * sizeof *persistent->lists);
    if (op == NULL || persistent == NULL) {
        free(op);
        free(persistent);
        group_drop(posting->group);
        return MPI_ERR_NO_MEM;
    }
    *persistent = (struct persistent){.call = *posting->call,
                                      .group = posting->group,
                                      .bytes = posting->bytes,
                                      .types = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL}};
    persistent->tag = (int)(atomic_fetch_add(&tags_used, 1) % (unsigned)tag_limit);
    *op = (struct op){.comm = posting->call->comm, .persistent = persistent};
    atomic_init(&op->holders, 1);
    atomic_init(&op->ended, true);
    int code = copy_arguments(persistent, posting);
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
    MPI_Comm comm = op->comm;
    /* A callback of MPI_COMM_SELF in MPI_Finalize starts a request: the service process is gone, so the call fails. */
    int code = op->persistent->group == NULL ? MPI_ERR_REQUEST : mpi.Start(request);
    if (code == MPI_SUCCESS) {
        posting_init(&posting, &op->persistent->call, op->persistent->group, op->persistent->bytes);
        code = posting_post(&posting, PERSISTENT);
        if (code == MPI_SUCCESS) {
            op_put_in_flight(op, &posting);
        } else {
            send_completion(op->persistent->tag);
        }
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
