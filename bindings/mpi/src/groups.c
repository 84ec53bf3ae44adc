/*
 * groups.c: the attachment of the process, and the groups of communicators.
 *
 * Everything here happens where the members synchronise anyway: MPI_Init, MPI_Finalize, and the blocking communicator
 * constructors. Each decision is agreed by all members before it takes effect, so that no member ever offloads a call
 * that another runs natively.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

static outboard_context *context;
static int group_keyval = MPI_KEYVAL_INVALID;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups;

outboard_context *shim_context(void)
{
    return context;
}

struct group *group_of(MPI_Comm comm)
{
    struct group *group = NULL;
    int found = 0;
    if (context == NULL || comm == MPI_COMM_NULL ||
        PMPI_Comm_get_attr(comm, group_keyval, &group, &found) != MPI_SUCCESS || !found)
        return NULL;
    return group->members == NULL ? NULL : group;
}

static void group_dissolve(struct group *group)
{
    if (group->members == NULL)
        return;
    requests_drain(group);
    outboard.group_destroy(group->members);
    group->members = NULL;
}

/* Called by MPI when the communicator goes. */
static int forget_group(MPI_Comm comm, int keyval, void *attribute, void *extra)
{
    (void)comm;
    (void)keyval;
    (void)extra;
    struct group *group = attribute;
    group_dissolve(group);
    pthread_mutex_lock(&lock);
    struct group **at = &groups;
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    pthread_mutex_unlock(&lock);
    free(group);
    return MPI_SUCCESS;
}

void group_drain_comm(MPI_Comm comm)
{
    struct group *group = group_of(comm);
    if (group != NULL)
        requests_drain(group);
}

/* ---- making a group ---- */

struct offer {
    unsigned char bytes[OUTBOARD_OFFER_BYTES];
    unsigned char ready;
};

/* A rank of another world (spawned, connected) may run without the shim: its communicators pass through untouched. */
static bool all_of_this_world(MPI_Comm comm, int ranks)
{
    MPI_Group here, world;
    int *from = malloc(2 * (size_t)ranks * sizeof *from), *to = from + ranks;
    bool all = from != NULL;
    PMPI_Comm_group(comm, &here);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    for (int rank = 0; all && rank < ranks; rank++)
        from[rank] = rank;
    if (all && PMPI_Group_translate_ranks(here, ranks, from, world, to) != MPI_SUCCESS)
        all = false;
    for (int rank = 0; all && rank < ranks; rank++)
        all = to[rank] != MPI_UNDEFINED;
    PMPI_Group_free(&here);
    PMPI_Group_free(&world);
    free(from);
    return all;
}

/* Brings all members' offers together; false on every member if any member has no offer. */
static bool exchange_offers(MPI_Comm comm, int ranks, bool ready, struct offer *mine, unsigned char *offers)
{
    struct offer *all = (struct offer *)offers;
    mine->ready = ready;
    if (PMPI_Allgather(mine, sizeof *mine, MPI_BYTE, all, sizeof *mine, MPI_BYTE, comm) != MPI_SUCCESS)
        return false;
    for (int rank = 0; rank < ranks; rank++)
        ready = ready && all[rank].ready;
    for (int rank = 0; ready && rank < ranks; rank++)
        memmove(offers + (size_t)rank * OUTBOARD_OFFER_BYTES, all[rank].bytes, OUTBOARD_OFFER_BYTES);
    return ready;
}

static void warn_native(MPI_Comm comm, int rank, const char *why)
{
    char name[MPI_MAX_OBJECT_NAME];
    int length;
    if (rank != 0)
        return;
    PMPI_Comm_get_name(comm, name, &length);
    fprintf(stderr, "outboard: communicator %s%sruns its collectives natively: %s\n", name, length > 0 ? " " : "", why);
}

/* Step two, with the offers of all at hand; agreed by all before the group is used. */
static bool create_together(MPI_Comm comm, struct group *group, const unsigned char *offers, char *why, size_t bytes)
{
    int made = outboard.group_create(context, offers, (uint32_t)group->ranks, (uint32_t)group->rank, &group->members);
    if (made != OUTBOARD_OK) {
        library_sentence(made, why, bytes);
        group->members = NULL;
    }
    int mine = made == OUTBOARD_OK, all = 0;
    if (PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS)
        all = 0;
    if (!all && group->members != NULL) {
        outboard.group_destroy(group->members);
        group->members = NULL;
    }
    return all;
}

void group_attach(MPI_Comm comm)
{
    int inter = 1, ranks = 0, rank = 0;
    if (context == NULL || comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter)
        return;
    PMPI_Comm_size(comm, &ranks);
    PMPI_Comm_rank(comm, &rank);
    if (ranks < 2 || !all_of_this_world(comm, ranks))
        return;
    char why[SHIM_SENTENCE] = "another of its ranks could not take part";
    struct offer mine = {.ready = 0};
    struct group *group = calloc(1, sizeof *group);
    unsigned char *offers = malloc((size_t)ranks * sizeof mine);
    if (offers == NULL) {
        /* Too little memory to take part in the exchange: the program could not go on either. */
        fprintf(stderr, "outboard: out of memory while a communicator of %d ranks was made\n", ranks);
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    int offered = outboard.group_offer(context, mine.bytes);
    if (offered != OUTBOARD_OK)
        library_sentence(offered, why, sizeof why);
    bool made = false;
    if (exchange_offers(comm, ranks, offered == OUTBOARD_OK && group != NULL, &mine, offers)) {
        group->ranks = ranks;
        group->rank = rank;
        made = create_together(comm, group, offers, why, sizeof why);
    }
    free(offers);
    if (!made) {
        free(group);
        warn_native(comm, rank, why);
        return;
    }
    pthread_mutex_lock(&lock);
    group->next = groups;
    groups = group;
    pthread_mutex_unlock(&lock);
    PMPI_Comm_set_attr(comm, group_keyval, group);
}

/* ---- the process ---- */

static bool right_mpi(char *why, size_t bytes)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING], built[32];
    int length;
    snprintf(built, sizeof built, "Open MPI v%d.%d.", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION);
    PMPI_Get_library_version(version, &length);
    if (strncmp(version, built, strlen(built)) == 0)
        return true;
    snprintf(why, bytes, "this shim was built for %sx, the program runs on %.40s; load the shim of that version", built,
             version);
    return false;
}

/* Everything this rank can find out alone. */
static bool attach_alone(char *why, size_t bytes)
{
    if (!right_mpi(why, bytes) || !progress_engine_find(why, bytes) || !library_load(why, bytes))
        return false;
    int outcome = outboard.attach(NULL, &context);
    if (outcome == OUTBOARD_OK)
        return true;
    context = NULL;
    library_sentence(outcome, why, bytes);
    return false;
}

/* True when every rank is ready; else `why` becomes the sentence of the lowest rank that is not. */
static bool agree(bool ready, char *why, size_t bytes)
{
    int rank, first, mine;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    mine = ready ? INT_MAX : rank;
    PMPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == INT_MAX)
        return true;
    PMPI_Bcast(why, (int)bytes, MPI_CHAR, first, MPI_COMM_WORLD);
    why[bytes - 1] = '\0';
    if (rank == 0 && why[0] != '\0')
        fprintf(stderr, "outboard: collectives run natively; rank %d says: %s\n", first, why);
    return false;
}

static bool switched_off(void)
{
    const char *wish = getenv("OUTBOARD_MPI");
    return wish != NULL && strcmp(wish, "off") == 0;
}

void shim_start(void)
{
    int ranks;
    char why[SHIM_SENTENCE] = "";
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2) {
        report_start("one rank");
        return;
    }
    /* Switched off: no warning, but all ranks hear of it, wherever the variable is set. */
    bool ready = !switched_off() && attach_alone(why, sizeof why);
    if (ready && (memory_start() != MPI_SUCCESS || requests_start() != MPI_SUCCESS ||
                  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget_group, &group_keyval, NULL) != MPI_SUCCESS)) {
        snprintf(why, sizeof why, "Open MPI refused a keyval or a progress hook; run natively with OUTBOARD_MPI=off");
        ready = false;
    }
    if (!agree(ready, why, sizeof why)) {
        if (group_keyval != MPI_KEYVAL_INVALID) {
            requests_stop();
            memory_stop();
            PMPI_Comm_free_keyval(&group_keyval);
        }
        if (context != NULL)
            outboard.detach(context);
        context = NULL;
        report_start(why[0] != '\0' ? why : "OUTBOARD_MPI=off");
        return;
    }
    report_start(NULL);
    group_attach(MPI_COMM_WORLD);
}

void shim_stop(void)
{
    if (context != NULL) {
        requests_drain(NULL);
        /* No rank detaches while another still waits for a collective. */
        PMPI_Barrier(MPI_COMM_WORLD);
        for (struct group *group = groups; group != NULL; group = group->next)
            group_dissolve(group);
        requests_stop();
        memory_stop();
        PMPI_Comm_delete_attr(MPI_COMM_WORLD, group_keyval);
        PMPI_Comm_free_keyval(&group_keyval);
        outboard.detach(context);
        context = NULL;
    }
    report_write();
}
