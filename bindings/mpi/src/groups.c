/*
 * groups.c: the groups of liboutboard, one for each communicator and one for each persistent request.
 *
 * The members make a group together where they may synchronise anyway: in MPI_Init, in the first blocking collective
 * that is offloaded, and in calls that make a persistent request, which has a group of its own. All members agree that
 * a group is made before a call uses it, so no member ever offloads a call that another runs natively.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "groups.h"
#include "communicator_table.h"
#include "hosts.h"
#include "library.h"
#include "neighbors.h"
#include "scratch.h"
#include "shim.h"
#include "tree.h"

void group_dissolve(struct group *group)
{
    if (group->state != GROUPED)
        return;
    outboard.group_destroy(group->members);
    group->members = NULL;
    group->state = REFUSED;
}

void group_out_of_memory(int ranks)
{
    /* A rank that does not know the communicator would choose otherwise than the other ranks. */
    fprintf(stderr, "outboard: out of memory while a communicator of %d ranks was made\n", ranks);
    mpi.Abort(MPI_COMM_WORLD, 1);
}

/* A rank of another world (spawned, connected) may run without the shim: its communicators pass through untouched. */
bool group_eligible(struct group *group)
{
    if (group->state == NEW)
        group->state = placement_of(group->comm, group->ranks, &group->placement) ? GROUPLESS : REFUSED;
    return group->state != REFUSED;
}

/* ---- making a group ---- */

struct offer {
    unsigned char bytes[OUTBOARD_OFFER_BYTES];
    unsigned char ready;
};

/* Whether the group is made in MPI_Init. Only the group of MPI_COMM_WORLD is; it is made or refused once. */
static bool made_in_init(const struct group *group)
{
    return group == group_of(MPI_COMM_WORLD);
}

static bool gather_offers(const struct group *group, struct offer *all)
{
    struct offer *own = &all[group->rank];
    if (!made_in_init(group))
        return mpi.Allgather(MPI_IN_PLACE, 0, MPI_BYTE, all, sizeof *own, MPI_BYTE, group->comm) == MPI_SUCCESS;
    tree_gather(all, sizeof *own);
    tree_broadcast(all, (size_t)group->ranks * sizeof *own);
    return true;
}

/* The least of all members' numbers, which are not negative. */
static int minimum_of_members(const struct group *group, int own)
{
    int minimum = 0;
    if (made_in_init(group))
        return tree_minimum(own);
    return mpi.Allreduce(&own, &minimum, 1, MPI_INT, MPI_MIN, group->comm) == MPI_SUCCESS ? minimum : 0;
}

/* Gathers all members' offers, without gaps; false on every member if any member has no offer. */
static bool exchange_offers(const struct group *group, bool ready, struct offer *all)
{
    all[group->rank].ready = ready;
    if (!gather_offers(group, all))
        return false;
    for (int rank = 0; rank < group->ranks; rank++)
        ready = ready && all[rank].ready;
    for (int rank = 0; ready && rank < group->ranks; rank++)
        memmove((unsigned char *)all + (size_t)rank * OUTBOARD_OFFER_BYTES, all[rank].bytes, OUTBOARD_OFFER_BYTES);
    return ready;
}

/* Warns once per communicator. Warns only once about persistent requests, because there may be thousands. */
static void warn_native(const struct group *group, const char *message)
{
    static atomic_bool warned_of_requests;
    char name[MPI_MAX_OBJECT_NAME];
    int length;
    bool of_request = group != group_of(group->comm);
    if (group->rank != 0 || (of_request && atomic_exchange(&warned_of_requests, true)))
        return;
    mpi.Comm_get_name(group->comm, name, &length);
    fprintf(stderr, "outboard: communicator %s%sruns %s natively: %s\n", name, length > 0 ? " " : "",
            of_request ? "a persistent collective" : "its collectives", message);
}

/* A reduction fits the scratch of this rank's service process if the bit length of its bytes is at most the result.
 * Hosts may differ. */
static int reduced_bits(const struct group *group)
{
    uint64_t most = 0;
    if (outboard.group_reduction_most(group->members, &most) != OUTBOARD_OK || most == 0)
        return 0;
    return 63 - __builtin_clzll(most);
}

/* Creates the group from the offers of all; all members agree on the result before the group is used. */
static bool create_together(struct group *group, const unsigned char *offers, char *message, size_t bytes)
{
    int made = outboard.group_create(library_context(), offers, (uint32_t)group->ranks, (uint32_t)group->rank,
                                     &group->members);
    if (made != OUTBOARD_OK) {
        library_error_message(made, message, bytes);
        group->members = NULL;
    }
    int agreed = minimum_of_members(group, made == OUTBOARD_OK ? 1 + reduced_bits(group) : 0);
    if (agreed == 0 && group->members != NULL) {
        outboard.group_destroy(group->members);
        group->members = NULL;
    }
    group->reduced_bits = agreed - 1;
    return agreed > 0;
}

void group_make(struct group *group)
{
    char message[SHIM_MESSAGE_BYTES] = "another of its ranks could not take part";
    struct offer *offers = scratch_allocate((size_t)group->ranks * sizeof *offers);
    if (offers == NULL)
        group_out_of_memory(group->ranks);
    int offered = outboard.group_offer(library_context(), offers[group->rank].bytes);
    if (offered != OUTBOARD_OK)
        library_error_message(offered, message, sizeof message);
    bool made = exchange_offers(group, offered == OUTBOARD_OK, offers) &&
                create_together(group, (const unsigned char *)offers, message, sizeof message);
    scratch_free(offers);
    group->state = made ? GROUPED : REFUSED;
    if (!made)
        warn_native(group, message);
}

/* Each group's limit is the whole scratch. An eighth of that limit lets eight persistent reductions be in flight. */
#define PERSISTENT_BITS 3

struct group *group_make_separate(const struct group *like)
{
    struct group *own = malloc(sizeof *own);
    if (own == NULL)
        group_out_of_memory(like->ranks);
    *own = (struct group){.comm = like->comm, .state = GROUPLESS, .ranks = like->ranks, .rank = like->rank};
    group_make(own);
    own->reduced_bits -= own->reduced_bits < PERSISTENT_BITS ? own->reduced_bits : PERSISTENT_BITS;
    return own;
}

void group_drop(struct group *own)
{
    group_dissolve(own);
    neighbors_free(own->neighbors);
    free(own);
}
