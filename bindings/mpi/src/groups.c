/*
 * groups.c: the attachment of the process, and the groups of communicators.
 *
 * A communicator enters the table by its first collective, so that one without collectives costs nothing. Joint work of
 * the members happens where they may synchronise anyway: in MPI_Init, in MPI_Finalize, in the first blocking collective
 * that is offloaded, and in calls that make a persistent request, which has its own group. All members agree on each
 * decision before it takes effect, so no member ever offloads a call that another runs natively.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <locale.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

static outboard_context *context;
static int group_keyval = MPI_KEYVAL_INVALID;
/* The communicator that this thread is freeing: calls on it by its callbacks do not enter it again. */
static _Thread_local MPI_Comm leaving;

outboard_context *shim_context(void)
{
    return context;
}

static void group_dissolve(struct group *group)
{
    if (group->standing != GROUPED)
        return;
    outboard.group_destroy(group->members);
    group->members = NULL;
    group->standing = REFUSED;
}

/* MPI calls this function when the communicator is freed. */
static int forget_group(MPI_Comm comm, int keyval, void *attribute, void *extra)
{
    (void)comm;
    (void)keyval;
    (void)extra;
    struct group *group = attribute;
    requests_drain(group->comm);
    group_dissolve(group);
    choices_forget(group);
    communicators_leave(group->comm);
    free(group);
    return MPI_SUCCESS;
}

MPI_Comm group_leaves(MPI_Comm comm)
{
    MPI_Comm outer = leaving;
    if (group_of(comm) != NULL)
        requests_drain(comm);
    leaving = comm;
    return outer;
}

void group_left(MPI_Comm outer)
{
    leaving = outer;
}

static void out_of_memory(int ranks)
{
    /* A rank that does not know the communicator would choose otherwise than the other ranks. */
    fprintf(stderr, "outboard: out of memory while a communicator of %d ranks was made\n", ranks);
    PMPI_Abort(MPI_COMM_WORLD, 1);
}

struct group *group_of_call(MPI_Comm comm)
{
    struct group *group = group_of(comm);
    int inter = 1, ranks = 0;
    if (group != NULL || context == NULL || comm == MPI_COMM_NULL || comm == leaving ||
        PMPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS)
        return group;
    PMPI_Comm_size(comm, &ranks);
    group = calloc(1, sizeof *group);
    if (group == NULL)
        out_of_memory(ranks);
    group->comm = comm;
    group->standing = inter || ranks < 2 ? REFUSED : NEW;
    group->ranks = ranks;
    PMPI_Comm_rank(comm, &group->rank);
    if (!communicators_enter(group) || PMPI_Comm_set_attr(comm, group_keyval, group) != MPI_SUCCESS)
        out_of_memory(ranks);
    return group;
}

void communicator_made(MPI_Comm comm)
{
    struct group *group = choice_offloads_all() ? group_of_call(comm) : NULL;
    if (group != NULL && group_may_have(group))
        group_make(group);
}

/* A rank of another world (spawned, connected) may run without the shim: its communicators pass through untouched. */
bool group_may_have(struct group *group)
{
    if (group->standing == NEW)
        group->standing = place_of(group->comm, group->ranks, &group->place) ? GROUPLESS : REFUSED;
    return group->standing != REFUSED;
}

/* ---- making a group ---- */

struct offer {
    unsigned char bytes[OUTBOARD_OFFER_BYTES];
    unsigned char ready;
};

/* Whether the group is made in MPI_Init. The group of MPI_COMM_WORLD is, and it is made or refused once. */
static bool in_init(const struct group *group)
{
    return group == group_of(MPI_COMM_WORLD);
}

static bool gather_offers(const struct group *group, struct offer *all)
{
    struct offer *mine = &all[group->rank];
    if (!in_init(group))
        return PMPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, all, sizeof *mine, MPI_BYTE, group->comm) == MPI_SUCCESS;
    tree_gather(all, sizeof *mine);
    tree_broadcast(all, (size_t)group->ranks * sizeof *mine);
    return true;
}

/* The least number of all members, which is not negative. */
static int least_of_all(const struct group *group, int mine)
{
    int least = 0;
    if (in_init(group))
        return tree_least(mine);
    return PMPI_Allreduce(&mine, &least, 1, MPI_INT, MPI_MIN, group->comm) == MPI_SUCCESS ? least : 0;
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

/* Warns once per communicator, and once for persistent requests, of which there may be thousands. */
static void warn_native(const struct group *group, const char *why)
{
    static atomic_bool said_of_requests;
    char name[MPI_MAX_OBJECT_NAME];
    int length;
    bool of_request = group != group_of(group->comm);
    if (group->rank != 0 || (of_request && atomic_exchange(&said_of_requests, true)))
        return;
    PMPI_Comm_get_name(group->comm, name, &length);
    fprintf(stderr, "outboard: communicator %s%sruns %s natively: %s\n", name, length > 0 ? " " : "",
            of_request ? "a persistent collective" : "its collectives", why);
}

/* Bits of the bytes of every reduction that fits the scratch of this rank's service process; hosts may differ. */
static int reduced_bits(const struct group *group)
{
    uint64_t most = 0;
    if (outboard.group_reduction_most(group->members, &most) != OUTBOARD_OK || most == 0)
        return 0;
    return 63 - __builtin_clzll(most);
}

/* Creates the group from the offers of all; all members agree on the result before the group is used. */
static bool create_together(struct group *group, const unsigned char *offers, char *why, size_t bytes)
{
    int made = outboard.group_create(context, offers, (uint32_t)group->ranks, (uint32_t)group->rank, &group->members);
    if (made != OUTBOARD_OK) {
        library_sentence(made, why, bytes);
        group->members = NULL;
    }
    int agreed = least_of_all(group, made == OUTBOARD_OK ? 1 + reduced_bits(group) : 0);
    if (agreed == 0 && group->members != NULL) {
        outboard.group_destroy(group->members);
        group->members = NULL;
    }
    group->reduced_bits = agreed - 1;
    return agreed > 0;
}

void group_make(struct group *group)
{
    char why[SHIM_SENTENCE] = "another of its ranks could not take part";
    struct offer *offers = scratch_take((size_t)group->ranks * sizeof *offers);
    if (offers == NULL)
        out_of_memory(group->ranks);
    int offered = outboard.group_offer(context, offers[group->rank].bytes);
    if (offered != OUTBOARD_OK)
        library_sentence(offered, why, sizeof why);
    bool made = exchange_offers(group, offered == OUTBOARD_OK, offers) &&
                create_together(group, (const unsigned char *)offers, why, sizeof why);
    scratch_give(offers);
    group->standing = made ? GROUPED : REFUSED;
    if (!made)
        warn_native(group, why);
}

/* Groups do not share scratch limits, so eight persistent reductions may be in flight at once. */
#define PERSISTENT_BITS 3

struct group *group_of_request(const struct group *like)
{
    struct group *own = malloc(sizeof *own);
    if (own == NULL)
        out_of_memory(like->ranks);
    *own = (struct group){.comm = like->comm, .standing = GROUPLESS, .ranks = like->ranks, .rank = like->rank};
    group_make(own);
    own->reduced_bits -= own->reduced_bits < PERSISTENT_BITS ? own->reduced_bits : PERSISTENT_BITS;
    return own;
}

void group_drop(struct group *own)
{
    group_dissolve(own);
    free(own);
}

/* ---- the process ---- */

/* A locale in which numbers in files have a decimal point, whatever the program's locale. */
struct numbers {
    locale_t plain, before;
};

static struct numbers numbers_begin(void)
{
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    return (struct numbers){plain, uselocale(plain)};
}

static void numbers_end(struct numbers numbers)
{
    uselocale(numbers.before);
    if (numbers.plain != (locale_t)0)
        freelocale(numbers.plain);
}

/* Whether the MPI library's version string begins so. */
static bool mpi_is(const char *beginning, char *version)
{
    int length;
    PMPI_Get_library_version(version, &length);
    return strncmp(version, beginning, strlen(beginning)) == 0;
}

static bool right_mpi(char *why, size_t bytes)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING], built[32];
    snprintf(built, sizeof built, "Open MPI v%d.%d.", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION);
    if (mpi_is(built, version))
        return true;
    snprintf(why, bytes, "this shim was built for %sx, the program runs on %.40s; load the shim of that version", built,
             version);
    return false;
}

/* Handles of an MPI library other than the one the shim was built for are useless, so no agreement is possible. */
static bool open_mpi(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    if (mpi_is("Open MPI v", version))
        return true;
    const char *rank = getenv("PMI_RANK");
    if (rank == NULL || strcmp(rank, "0") == 0)
        fprintf(stderr, "outboard: collectives run natively: the program runs on %.40s, and the shim is for Open MPI\n",
                version);
    return false;
}

/* All steps that this rank can do alone. */
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

/* True if every rank is ready; else `why` becomes the message of the lowest rank that is not. */
static bool agree(bool ready, char *why, size_t bytes)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int first = tree_least(ready ? INT_MAX : rank);
    if (first == INT_MAX)
        return true;
    tree_lift(why, bytes, first);
    tree_broadcast(why, bytes);
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

/* Attaches this rank and sets up memory, progress hook and keyval for its communicators. */
static bool get_ready(char *why, size_t bytes)
{
    if (!attach_alone(why, bytes))
        return false;
    if (memory_start() == MPI_SUCCESS && requests_start() == MPI_SUCCESS &&
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget_group, &group_keyval, NULL) == MPI_SUCCESS)
        return true;
    snprintf(why, bytes, "Open MPI refused a keyval or a progress hook; run natively with OUTBOARD_MPI=off");
    return false;
}

static void detach(void)
{
    if (group_keyval != MPI_KEYVAL_INVALID) {
        requests_stop();
        memory_stop();
        PMPI_Comm_free_keyval(&group_keyval);
    }
    if (context != NULL)
        outboard.detach(context);
    context = NULL;
}

void shim_start(void)
{
    int ranks;
    char why[SHIM_SENTENCE] = "";
    bool same_build;
    if (!open_mpi())
        return;
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    bool off = switched_off(), native = choice_agree(!off, &same_build);
    if (ranks < 2 || native) {
        report_start(native ? "OUTBOARD_CHOICE=native" : "one rank");
        return;
    }
    /* Switched off: no warning, but all ranks must agree, wherever the variable is set. */
    if (!off && !same_build)
        snprintf(why, sizeof why, "the shim here is another build than that of rank 0; install one on all hosts");
    bool ready = !off && same_build && get_ready(why, sizeof why);
    if (!agree(ready, why, sizeof why)) {
        detach();
        report_start(why[0] != '\0' ? why : "OUTBOARD_MPI=off");
        return;
    }
    hosts_find();
    report_start(NULL);
    struct numbers numbers = numbers_begin();
    choice_start();
    numbers_end(numbers);
    struct group *world = group_of_call(MPI_COMM_WORLD);
    if (group_may_have(world))
        group_make(world);
}

void shim_stop(void)
{
    struct numbers numbers = numbers_begin();
    if (context != NULL) {
        requests_drain(MPI_COMM_NULL);
        /* No rank detaches while another still waits for a collective. */
        PMPI_Barrier(MPI_COMM_WORLD);
        choice_stop();
        for (struct group *group = communicators_any(); group != NULL; group = communicators_any())
            PMPI_Comm_delete_attr(group->comm, group_keyval);
        communicators_stop();
        detach();
        hosts_forget();
    }
    report_write();
    ledger_stop();
    numbers_end(numbers);
}
