/*
 * kept_call.c: copies of the arguments of calls that are posted later.
 */
#include <stdlib.h>
#include <string.h>

#include "kept_call.h"
#include "buffers.h"
#include "neighbors.h"
#include "operators.h"
#include "shim.h"

/* Whether an argument of the program is used here. On a rank that is not the root, or in place, some arguments are
 * ignored and may be anything. */
static bool is_used(const struct buffer *buffer, const struct user_buffer *user_buffer)
{
    return buffer->blocks > 0 && buffer->user.type == user_buffer->type;
}

/* Lengths of a buffer's lists. */
static int list_length(const struct posting *posting, int which)
{
    return is_neighborhood(posting->call) ? neighbors_count(posting->group, which == 0) : posting->group->ranks;
}

/* Duplicates a datatype; a predefined one stays itself. */
static int copy_type(struct kept_call *kept, MPI_Datatype *type)
{
    int integers, addresses, types, combiner;
    int code = mpi.Type_get_envelope(*type, &integers, &addresses, &types, &combiner);
    if (code != MPI_SUCCESS || combiner == MPI_COMBINER_NAMED)
        return code;
    MPI_Datatype *copy = &kept->types[kept->types_count];
    code = mpi.Type_dup(*type, copy);
    if (code == MPI_SUCCESS)
        *type = kept->types[kept->types_count++];
    return code;
}

static void copy_lists(struct user_buffer *user_buffer, int64_t *room, int length)
{
    size_t each = user_buffer->wide_counts ? sizeof(MPI_Count) : sizeof(int);
    user_buffer->counts = memcpy(room, user_buffer->counts, (size_t)length * each);
    each = user_buffer->wide_displacements ? sizeof(MPI_Aint) : sizeof(int);
    if (user_buffer->displacements != NULL)
        user_buffer->displacements = memcpy(room + length, user_buffer->displacements, (size_t)length * each);
}

/* Copies a buffer's list of datatypes, and then the datatypes. */
static int copy_type_list(struct kept_call *kept, struct user_buffer *user_buffer, MPI_Datatype *room, int length)
{
    int code = MPI_SUCCESS;
    if (length > 0)
        memcpy(room, user_buffer->types, (size_t)length * sizeof *room);
    user_buffer->types = room;
    for (int i = 0; i < length && code == MPI_SUCCESS; i++)
        code = copy_type(kept, &room[i]);
    return code;
}

/* Whether this rank uses the lists of a buffer. */
static bool lists_used(const struct posting *posting, const struct user_buffer *user_buffer)
{
    const struct buffer *send = &posting->buffers.send, *receive = &posting->buffers.receive;
    /* A reduction uses its lists on every rank; its datatypes are predefined. */
    return posting->call->collective == COLLECTIVE_reduce_scatter || is_neighborhood(posting->call) ||
           (send->blocks > 0 && send->user.counts == user_buffer->counts) ||
           (receive->blocks > 0 && receive->user.counts == user_buffer->counts);
}

static int copy_arguments(struct kept_call *kept, const struct posting *posting, bool lists, MPI_Datatype *room)
{
    const struct buffer *send = &posting->buffers.send, *receive = &posting->buffers.receive;
    struct user_buffer *all[2] = {&kept->call.send, &kept->call.receive};
    int64_t *numbers = kept->lists;
    int code = MPI_SUCCESS;
    for (int i = 0; i < 2 && code == MPI_SUCCESS; i++) {
        int length = list_length(posting, i);
        bool used = all[i]->counts != NULL && lists_used(posting, all[i]);
        if (used && all[i]->types != NULL)
            code = copy_type_list(kept, all[i], room, length);
        else if (is_used(send, all[i]) || is_used(receive, all[i]))
            code = copy_type(kept, &all[i]->type);
        if (used && lists) {
            copy_lists(all[i], numbers, length);
            numbers += 2 * length;
        }
        room += all[i]->types == NULL ? 0 : length;
    }
    return code;
}

int kept_call_make(const struct posting *posting, bool lists, struct kept_call **made)
{
    size_t length = (size_t)list_length(posting, 0) + (size_t)list_length(posting, 1);
    struct kept_call *kept = *made = malloc(sizeof *kept + (lists ? 2 * length : 0) * sizeof *kept->lists);
    if (kept == NULL)
        return MPI_ERR_NO_MEM;
    kept->call = *posting->call;
    kept->types_count = 0;
    bool typed = posting->call->send.types != NULL || posting->call->receive.types != NULL;
    /* The duplicates, then the lists of datatypes. */
    size_t types = typed ? length : 2;
    kept->types = malloc(2 * (types + 1) * sizeof *kept->types);
    if (method_of(kept->call.collective)->reduces)
        own_operator_hold(kept->call.op, kept->call.receive.type);
    if (kept->types == NULL)
        return MPI_ERR_NO_MEM;
    return copy_arguments(kept, posting, lists, kept->types + types);
}

void kept_call_free(struct kept_call *kept)
{
    if (kept == NULL)
        return;
    if (method_of(kept->call.collective)->reduces)
        own_operator_release(kept->call.op, kept->call.receive.type);
    for (int i = 0; i < kept->types_count; i++)
        mpi.Type_free(&kept->types[i]);
    free(kept->types);
    free(kept);
}
