/*
 * kept_call.c: copies of the arguments of calls that are posted later.
 */
#include <stdlib.h>
#include <string.h>

#include "kept_call.h"
#include "buffers.h"
#include "shim.h"

/* Whether an argument of the program is used here. On a rank that is not the root, or in place, some arguments are
 * ignored and may be anything. */
static bool is_used(const struct buffer *buffer, const struct user_buffer *user_buffer)
{
    return buffer->blocks > 0 && buffer->user.type == user_buffer->type;
}

static int copy_type(struct user_buffer *user_buffer, MPI_Datatype *copy)
{
    int integers, addresses, types, combiner;
    int code = mpi.Type_get_envelope(user_buffer->type, &integers, &addresses, &types, &combiner);
    if (code != MPI_SUCCESS || combiner == MPI_COMBINER_NAMED)
        return code;
    code = mpi.Type_dup(user_buffer->type, copy);
    if (code == MPI_SUCCESS)
        user_buffer->type = *copy;
    return code;
}

static void copy_lists(struct user_buffer *user_buffer, int64_t *room, int ranks)
{
    size_t bytes = (size_t)ranks * (user_buffer->wide ? sizeof(int64_t) : sizeof(int));
    user_buffer->counts = memcpy(room, user_buffer->counts, bytes);
    if (user_buffer->displacements != NULL)
        user_buffer->displacements = memcpy(room + ranks, user_buffer->displacements, bytes);
}

static int copy_arguments(struct kept_call *kept, const struct posting *posting, bool lists)
{
    const struct buffer *send = &posting->buffers.send, *receive = &posting->buffers.receive;
    int ranks = posting->group->ranks;
    /* A reduction uses its lists on every rank; its datatypes are predefined. */
    bool reduces = kept->call.collective == COLLECTIVE_reduce_scatter;
    struct user_buffer *all[2] = {&kept->call.send, &kept->call.receive};
    int code = MPI_SUCCESS;
    for (int i = 0; i < 2 && code == MPI_SUCCESS; i++) {
        const void *list = lists ? all[i]->counts : NULL;
        if (list != NULL && (reduces || (send->blocks > 0 && send->user.counts == list) ||
                             (receive->blocks > 0 && receive->user.counts == list)))
            copy_lists(all[i], kept->lists + 2 * i * ranks, ranks);
        if (is_used(send, all[i]) || is_used(receive, all[i]))
            code = copy_type(all[i], &kept->types[i]);
    }
    return code;
}

int kept_call_make(const struct posting *posting, bool lists, struct kept_call **made)
{
    size_t numbers = lists ? 4 * (size_t)posting->group->ranks : 0;
    struct kept_call *kept = *made = malloc(sizeof *kept + numbers * sizeof *kept->lists);
    if (kept == NULL)
        return MPI_ERR_NO_MEM;
    kept->call = *posting->call;
    kept->types[0] = kept->types[1] = MPI_DATATYPE_NULL;
    return copy_arguments(kept, posting, lists);
}

void kept_call_free(struct kept_call *kept)
{
    for (int i = 0; kept != NULL && i < 2; i++)
        if (kept->types[i] != MPI_DATATYPE_NULL)
            mpi.Type_free(&kept->types[i]);
    free(kept);
}
