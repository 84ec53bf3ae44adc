/*
 * choice.c: chooses whether a call is offloaded or left to the MPI library, by communicator and class of calls.
 *
 * A class is a collective, a form and the bit length of the number of bytes that all ranks know. Calls of a class begin
 * on the path that earlier runs have found faster (tuning_cache.c), else on the path of a built-in rule. In adaptive
 * and learning mode some turns then try both paths (trials.c). The members agree on the times of the turns and keep the
 * faster path.
 *
 * Invariants: the choice depends only on values that are equal on all members: OUTBOARD_CHOICE of rank 0, rank 0's
 * cached results, the placement of the communicator, the number of calls, and vectors on which the members have agreed.
 * Members agree, and make groups, only in blocking calls and in calls that make persistent requests.
 *
 * Reductions are tried only in learning mode, since the two paths may differ in the last bits. In other modes the
 * results of earlier runs decide. A result overrides the built-in rule only if the result is sure, as no trial would
 * correct it. Persistent requests choose their path once, when they are made: the path of nonblocking calls of their
 * size.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choice.h"
#include "classes.h"
#include "communicator_table.h"
#include "communicators.h"
#include "groups.h"
#include "hosts.h"
#include "methods.h"
#include "operators.h"
#include "report.h"
#include "requests.h"
#include "shim.h"
#include "stats.h"
#include "timings.h"
#include "tree.h"
#include "trials.h"
#include "tuning_cache.h"

/* The built-in rule offloads calls between hosts from a size on, given here as a bit length. The size is 256 KiB for
 * calls that block or reduce, and 16 KiB for other calls. It is 512 KiB for reductions between two hosts, where no byte
 * is sent once for many ranks. */
#define BLOCKING_BITS 19
#define NONBLOCKING_BITS 15
/* Calls of a class before it requests a trial. A request costs about as much as a small call. */
#define FIRST_TRIAL_AT 3
#define FIRST_TRIAL_AT_SMALL 50
/* After this many calls of the communicator an unfinished trial no longer blocks the trials of other classes. */
#define TRIAL_PATIENCE 1000
/* After this many nonblocking calls that lack only a group, a group is made; until then such calls go natively. */
#define GROUPLESS_MAX 8

enum mode { ADAPTIVE, LEARN, FIXED, OFFLOAD, LEAVE_NATIVE, MODES };
static const char *const modes[MODES] = {"adaptive", "learn", "fixed", "offload", "native"};

static enum mode mode = ADAPTIVE;
static double started;

/* ---- start and end ---- */

static enum mode mode_of(const char *word)
{
    for (enum mode candidate = 0; candidate < MODES; candidate++)
        if (strcmp(word, modes[candidate]) == 0)
            return candidate;
    fprintf(stderr, "outboard: OUTBOARD_CHOICE is \"%s\", not adaptive, learn, fixed, offload or native; "
                    "adaptive is taken\n", word);
    return ADAPTIVE;
}

static bool trials_enabled(void)
{
    return mode == ADAPTIVE || mode == LEARN;
}

bool choice_agree_mode(bool enabled, bool *same_build)
{
    const char *word = getenv("OUTBOARD_CHOICE"), *report = getenv("OUTBOARD_MPI_REPORT");
    int rank;
    unsigned agreed[3] = {ADAPTIVE, report != NULL && report[0] != '\0', SHIM_BUILD};
    mpi.Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && enabled && word != NULL && word[0] != '\0')
        agreed[0] = mode_of(word);
    tree_broadcast(agreed, sizeof agreed);
    mode = (enum mode)agreed[0];
    report_enable(agreed[1] != 0, modes[mode]);
    *same_build = agreed[2] == SHIM_BUILD;
    return mode == LEAVE_NATIVE;
}

void choice_start(void)
{
    if (mode == ADAPTIVE || mode == LEARN || mode == FIXED)
        tuning_cache_read();
    started = mpi.Wtime();
}

void choice_stop(void)
{
    const struct group *world = group_of(MPI_COMM_WORLD);
    report_choices(world == NULL ? 0 : world->choices.digest, communicator_table_count());
    if (trials_enabled())
        tuning_cache_write();
    tuning_cache_free();
}

void communicator_made(MPI_Comm comm)
{
    struct group *group = mode == OFFLOAD ? group_of_call(comm) : NULL;
    if (group != NULL && group_eligible(group))
        group_make(group);
}

/* ---- classes ---- */

static unsigned size_class(uint64_t bytes)
{
    if (bytes == BYTES_UNKNOWN)
        return SIZE_UNKNOWN;
    return bytes == 0 ? 0 : 64 - (unsigned)__builtin_clzll(bytes);
}

/* Offloading pays between hosts, if the program has other work meanwhile, or if much data is sent once by multicast. In
 * a blocking reduction no two ranks need the same bytes, so a gain is not sure. */
static enum path built_in_rule(enum form form, enum collective collective, unsigned size,
                               const struct placement *placement)
{
    bool reduces = method_of(collective)->reduces;
    if (placement->hosts == 1 || (form == BLOCKING && (size == SIZE_UNKNOWN || reduces)))
        return NATIVE;
    unsigned from = form == BLOCKING || reduces ? BLOCKING_BITS + (reduces && placement->hosts == 2) : NONBLOCKING_BITS;
    return size < from ? NATIVE : OFFLOADED;
}

/* The call at which a class requests its first trial; 0: never. */
static uint64_t first_trial_at(unsigned key)
{
    if (!trials_enabled() || form_of(key) == PERSISTENT || (mode != LEARN && method_of(collective_of(key))->reduces))
        return 0;
    return size_of(key) < NONBLOCKING_BITS || size_of(key) == SIZE_UNKNOWN ? FIRST_TRIAL_AT_SMALL : FIRST_TRIAL_AT;
}

/* Sets the path on which calls of a new class begin. */
static void class_start(struct class *class, const struct group *group)
{
    static const struct estimate unknown;
    enum collective collective = collective_of(class->key);
    enum form form = form_of(class->key);
    if (mode == OFFLOAD) {
        trial_start(&class->trial, OFFLOADED, BY_SETTING, &unknown, 0);
        return;
    }
    uint64_t first = first_trial_at(class->key);
    form = form == BLOCKING ? BLOCKING : NONBLOCKING;
    const struct tuning_entry *found =
        tuning_cache_find(class_key(collective, form, size_of(class->key)), &group->placement);
    const struct estimate *prior = found == NULL ? &unknown : &found->estimate;
    enum path rule = built_in_rule(form, collective, size_of(class->key), &group->placement),
              path = trial_faster(prior->seconds);
    if (prior->launches > 0 && (path == rule || !method_of(collective)->reduces || trial_conclusive(prior)))
        trial_start(&class->trial, path, BY_CACHE, prior, first);
    else
        trial_start(&class->trial, rule, BY_RULE, prior, first);
}

static struct class *class_make(struct group *group, unsigned key)
{
    struct choices *choices = &group->choices;
    struct class *class = calloc(1, sizeof *class);
    if (class != NULL) {
        class->key = key;
        class_start(class, group);
        class->stats = stats_of(key, &group->placement);
    }
    if (class == NULL || class->stats == NULL) {
        /* A rank that cannot count its calls would choose otherwise than the other ranks. */
        fprintf(stderr, "outboard: out of memory for the classes of calls\n");
        mpi.Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    class_append(choices, class);
    stats_set_choice(class->stats, &class->trial);
    return class;
}

static struct class *class_of(struct group *group, unsigned key)
{
    struct class *class = class_find(&group->choices, key);
    if (class == NULL)
        class = class_make(group, key);
    group->choices.latest = class;
    return class;
}

/* ---- agreement ---- */

/* Aborts unless all members agree about one class and question: no later call could repair a difference. */
static void check_same_class(const double *own, const double *agreed)
{
    if (own[VECTOR_MARK] == agreed[VECTOR_MARK] && own[VECTOR_UNMARK] == agreed[VECTOR_UNMARK])
        return;
    fprintf(stderr, "outboard: the ranks of a communicator have counted its collectives differently; run with "
                    "OUTBOARD_CHOICE=fixed and report it\n");
    mpi.Abort(MPI_COMM_WORLD, 1);
}

/* Collective over the communicator. */
static void agree_on_class(struct group *group, struct class *class)
{
    double own[VECTOR_LENGTH], agreed[VECTOR_LENGTH];
    class_fill_vector(class, mpi.Wtime() - started, own);
    if (mpi.Allreduce(own, agreed, VECTOR_LENGTH, MPI_DOUBLE, MPI_MAX, group->comm) != MPI_SUCCESS)
        return; /* the communicator is broken: the program's next call on it will report that */
    check_same_class(own, agreed);
    group->choices.no_trial_before = (uint64_t)((double)group->choices.calls * trial_growth_needed(agreed));
    class_apply_agreement(class, agreed);
    group->choices.awaiting_agreement -= !trial_awaits_agreement(&class->trial);
    if (trial_open(&class->trial) && group->choices.in_trial != class) {
        group->choices.in_trial = class;
        group->choices.trial_began_at = group->choices.calls;
    }
    stats_set_choice(class->stats, &class->trial);
}

/* Only one trial runs at a time, so that its cost is known before the next trial is requested. Without an open question
 * there is no agreement: an agreement costs as much as a small call, which a short program would pay for each class. */
static bool may_agree(const struct choices *choices, struct trial *trial)
{
    if (!trial_awaits_agreement(trial))
        return false;
    bool other = choices->in_trial != NULL && trial_open(&choices->in_trial->trial) &&
                 choices->calls - choices->trial_began_at < TRIAL_PATIENCE;
    return !(trial->state == REQUESTING && (other || choices->calls < choices->no_trial_before)) && trial_due(trial);
}

/* Agrees on one class and makes a requested group. All members call this where they may wait for one another. */
static void synchronize(struct group *group)
{
    struct choices *choices = &group->choices;
    struct class *due = NULL;
    for (struct class *class = choices->classes; choices->awaiting_agreement > 0 && class != NULL; class = class->next)
        if (due == NULL && may_agree(choices, &class->trial))
            due = class;
    if (due != NULL)
        agree_on_class(group, due);
    if (choices->groupless >= GROUPLESS_MAX && group->state == GROUPLESS)
        group_make(group);
}

/* ---- the call ---- */

static enum path count_call(struct group *group, struct class *class, struct route *route)
{
    group->choices.calls++;
    bool waited = trial_awaits_agreement(&class->trial);
    enum path path = trial_count_call(&class->trial, &route->trial_turn);
    group->choices.awaiting_agreement += trial_awaits_agreement(&class->trial) - waited;
    return path;
}

/* Persistent requests follow the current path of the nonblocking calls of their size. */
static void follow_nonblocking(const struct group *group, struct class *class)
{
    unsigned key = class_key(collective_of(class->key), NONBLOCKING, size_of(class->key));
    const struct class *like = class_find(&group->choices, key);
    if (like == NULL)
        return;
    class->trial.path = like->trial.path;
    class->trial.reason = like->trial.reason;
    stats_set_choice(class->stats, &class->trial);
}

/* A nonblocking call cannot make a group: without a group the call goes natively and is not counted for trials. */
static enum path pass_without_group(struct group *group, const struct class *class)
{
    group->choices.groupless += class->trial.path == OFFLOADED;
    return NATIVE;
}

/* Makes the missing group of the call. False on all members if the call can have no group. */
static bool make_missing_group(const struct method *method, enum form form, struct route *route)
{
    route->began = mpi.Wtime();
    if (form == PERSISTENT)
        route->group = group_make_separate(route->group);
    else
        group_make(route->group);
    bool fits = route->group->state == GROUPED && method->allows(route->group, route->bytes);
    if (!fits && form == PERSISTENT)
        group_drop(route->group);
    return fits;
}

static void choose(const struct call *call, enum form form, struct group *group, struct route *route)
{
    const struct method *method = method_of(call->collective);
    if (form == BLOCKING && group->choices.classes != NULL)
        synchronize(group);
    /* The rank itself combines what the program's own operators need, so such calls are offloaded on request alone. */
    if (method->reduces && mode != OFFLOAD && reduction_is_own(call->op, call->receive.type))
        return;
    if (!group_eligible(group) || !method->measure(call, group, &route->bytes) ||
        (group->state == GROUPED && !method->allows(group, route->bytes)))
        return;
    struct class *class = class_of(group, class_key(call->collective, form, size_class(route->bytes)));
    route->class = class;
    route->group = group;
    if (form == PERSISTENT)
        follow_nonblocking(group, class);
    route->path = form == NONBLOCKING && group->state == GROUPLESS ? pass_without_group(group, class)
                                                                   : count_call(group, class, route);
    route->timed = route->timed || route->trial_turn.number >= 0;
    group->choices.digest = (group->choices.digest ^ (class->key * PATHS + route->path)) * 0x100000001b3u;
    if (route->path == OFFLOADED && (form == PERSISTENT || group->state == GROUPLESS) &&
        !make_missing_group(method, form, route)) {
        route->path = NATIVE;
        route->trial_turn.number = -1; /* the time of this call does not measure offloading */
    }
    stats_count_call(class->stats, route->path);
}

bool choice_offloads(const struct call *call, enum form form, struct route *route)
{
    struct group *group = group_of_call(call->comm);
    *route = (struct route){.path = NATIVE, .trial_turn = {.number = -1}, .timed = report_enabled};
    requests_collect();
    if (group != NULL && group->state != REFUSED)
        choose(call, form, group, route);
    if (route->timed && route->began == 0)
        route->began = mpi.Wtime();
    return route->path == OFFLOADED;
}

void choice_time_passed(const struct route *route, enum form form, MPI_Request made)
{
    double seconds = mpi.Wtime() - route->began;
    report_add_passed_time(seconds);
    if (route->class == NULL)
        return;
    if (form == NONBLOCKING)
        timings_add(made, route, seconds);
    else
        class_record_time(route->class, NATIVE, &route->trial_turn, seconds, 0);
}
