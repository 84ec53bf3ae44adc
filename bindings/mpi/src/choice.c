/*
 * choice.c: chooses whether a call is offloaded or left to the MPI library, by communicator and class of calls.
 *
 * A class is a collective, a form and the number of bits of the bytes that all ranks know. Its calls begin in the way
 * that earlier runs have found faster (remembered.c), else by a built-in rule. In adaptive and learning mode some turns
 * then go both ways (trials.c). The members agree on the times of the turns, and go on with the faster way.
 *
 * Invariants: the choice depends only on values that are equal on all members: OUTBOARD_CHOICE of rank 0, rank 0's
 * remembered results, the place of the communicator, the number of calls, and vectors on which the members have agreed.
 * Members agree, and make groups, only in blocking calls and in calls that make persistent requests.
 *
 * Reductions are tried only in learning mode, since the two ways may differ in the last bits. Otherwise the results of
 * earlier runs decide; against the built-in rule only sure results count, as no trial would correct them. Persistent
 * requests choose their way once, when they are made: the way of nonblocking calls of their size.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

/* The built-in rule: bits of the bytes from which calls between hosts are offloaded: 256 KiB if they block or reduce,
 * others 16 KiB; 512 KiB if they reduce between two hosts, where no byte is sent once for many ranks. */
#define SURE_FROM 19
#define OTHERS_FROM 15
/* Calls of a class before it requests a trial. A request costs about as much as a small call. */
#define ASKS_AT 3
#define ASKS_AT_SMALL 50
/* After this many calls of the communicator an unfinished trial no longer blocks the trials of other classes. */
#define TRIAL_PATIENCE 1000
/* After this many nonblocking calls that lack only a group, a group is made; until then they go natively. */
#define GROUPLESS_MOST 8

enum mode { ADAPTIVE, LEARN, FIXED, OFFLOAD, LEAVE_NATIVE, MODES };
static const char *const modes[MODES] = {"adaptive", "learn", "fixed", "offload", "native"};

#define TEXT(Name, lower, ...) #lower,
const char *const collective_names[COLLECTIVES_KNOWN] = {COLLECTIVES(TEXT)};
#undef TEXT
const char *const form_names[FORMS] = {"blocking", "nonblocking", "persistent"};

static enum mode mode = ADAPTIVE;
static double started;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the times in trials, and: */
static double excess;                                    /* seconds that trials have cost this rank */

/* ---- start and end ---- */

static enum mode mode_of(const char *word)
{
    for (enum mode known = 0; known < MODES; known++)
        if (strcmp(word, modes[known]) == 0)
            return known;
    fprintf(stderr, "outboard: OUTBOARD_CHOICE is \"%s\", not adaptive, learn, fixed, offload or native; "
                    "adaptive is taken\n", word);
    return ADAPTIVE;
}

static bool tries(void)
{
    return mode == ADAPTIVE || mode == LEARN;
}

bool choice_agree(bool heeded, bool *same_build)
{
    const char *word = getenv("OUTBOARD_CHOICE"), *report = getenv("OUTBOARD_MPI_REPORT");
    int rank;
    unsigned agreed[3] = {ADAPTIVE, report != NULL && report[0] != '\0', SHIM_BUILD};
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && heeded && word != NULL && word[0] != '\0')
        agreed[0] = mode_of(word);
    tree_broadcast(agreed, sizeof agreed);
    mode = (enum mode)agreed[0];
    report_wanted = agreed[1] != 0;
    *same_build = agreed[2] == SHIM_BUILD;
    return mode == LEAVE_NATIVE;
}

void choice_start(void)
{
    if (mode == ADAPTIVE || mode == LEARN || mode == FIXED)
        remembered_read();
    started = PMPI_Wtime();
}

void choice_stop(void)
{
    const struct group *world = group_of(MPI_COMM_WORLD);
    report_choices(world == NULL ? 0 : world->choices.digest, communicators_count());
    if (tries())
        remembered_write();
    remembered_stop();
}

const char *choice_name(void)
{
    return modes[mode];
}

bool choice_offloads_all(void)
{
    return mode == OFFLOAD;
}

void choices_forget(struct group *group)
{
    timings_forget_group(group);
    while (group->choices.classes != NULL) {
        struct class *class = group->choices.classes;
        group->choices.classes = class->next;
        free(class);
    }
}

/* ---- classes ---- */

static unsigned size_class(uint64_t bytes)
{
    if (bytes == BYTES_UNKNOWN)
        return SIZE_UNKNOWN;
    return bytes == 0 ? 0 : 64 - (unsigned)__builtin_clzll(bytes);
}

/* Offloading pays between hosts, if the program has other work meanwhile, or if much data is sent once by multicast. In
 * a blocking reduction no two ranks need the same bytes, so its gain is not sure. */
static enum way built_in(enum form form, enum collective collective, unsigned size, const struct place *place)
{
    bool reduces = method_of(collective)->reduces;
    if (place->hosts == 1 || (form == BLOCKING && (size == SIZE_UNKNOWN || reduces)))
        return NATIVE;
    unsigned from = form == BLOCKING || reduces ? SURE_FROM + (reduces && place->hosts == 2) : OTHERS_FROM;
    return size < from ? NATIVE : OFFLOADED;
}

static struct class *class_find(const struct choices *choices, unsigned key)
{
    struct class *class = choices->latest;
    if (class != NULL && class->key == key)
        return class;
    for (class = choices->classes; class != NULL && class->key != key; class = class->next)
        continue;
    return class;
}

/* The call at which a class requests its first trial; 0: never. */
static uint64_t asks_at(unsigned key)
{
    if (!tries() || form_of(key) == PERSISTENT || (mode != LEARN && method_of(collective_of(key))->reduces))
        return 0;
    return size_of(key) < OTHERS_FROM || size_of(key) == SIZE_UNKNOWN ? ASKS_AT_SMALL : ASKS_AT;
}

/* Sets the way in which calls of a new class begin. */
static void class_start(struct class *class, const struct group *group)
{
    static const struct learnt unknown;
    enum collective collective = collective_of(class->key);
    enum form form = form_of(class->key);
    if (mode == OFFLOAD) {
        trial_start(&class->trial, OFFLOADED, SET, &unknown, 0);
        return;
    }
    uint64_t first = asks_at(class->key);
    form = form == BLOCKING ? BLOCKING : NONBLOCKING;
    const struct remembered *found = remembered_find(class_key(collective, form, size_of(class->key)), &group->place);
    const struct learnt *before = found == NULL ? &unknown : &found->learnt;
    enum way rule = built_in(form, collective, size_of(class->key), &group->place), way = trial_faster(before->seconds);
    if (before->launches > 0 && (way == rule || !method_of(collective)->reduces || trial_sure(before)))
        trial_start(&class->trial, way, REMEMBERED, before, first);
    else
        trial_start(&class->trial, rule, BUILT_IN, before, first);
}

static struct class *class_make(struct group *group, unsigned key)
{
    struct choices *choices = &group->choices;
    struct class *class = calloc(1, sizeof *class), **end = &choices->classes;
    if (class != NULL) {
        class->key = key;
        class_start(class, group);
        class->row = ledger_row(key, &group->place);
    }
    if (class == NULL || class->row == NULL) {
        /* A rank that cannot count its calls would choose otherwise than the other ranks. */
        fprintf(stderr, "outboard: out of memory for the classes of calls\n");
        PMPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    while (*end != NULL)
        end = &(*end)->next;
    *end = class;
    ledger_chosen(class->row, &class->trial);
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

/* Aborts unless all members are at the same agreement: no later call could repair that. */
static void check_mark(const double *mine, const double *agreed)
{
    if (mine[VECTOR_MARK] == agreed[VECTOR_MARK] && mine[VECTOR_UNMARK] == agreed[VECTOR_UNMARK])
        return;
    fprintf(stderr, "outboard: the ranks of a communicator have counted its collectives differently; run with "
                    "OUTBOARD_CHOICE=fixed and report it\n");
    PMPI_Abort(MPI_COMM_WORLD, 1);
}

/* Collective over the communicator. */
static void agree(struct group *group, struct class *class)
{
    double mine[VECTOR_LENGTH], agreed[VECTOR_LENGTH];
    pthread_mutex_lock(&lock);
    trial_fill(&class->trial, class->key, excess, PMPI_Wtime() - started, mine);
    pthread_mutex_unlock(&lock);
    if (PMPI_Allreduce(mine, agreed, VECTOR_LENGTH, MPI_DOUBLE, MPI_MAX, group->comm) != MPI_SUCCESS)
        return; /* the communicator is broken: the program's next call on it will report that */
    check_mark(mine, agreed);
    group->choices.asks_from = (uint64_t)((double)group->choices.calls * trial_too_early(agreed));
    pthread_mutex_lock(&lock);
    excess += trial_agree(&class->trial, agreed);
    pthread_mutex_unlock(&lock);
    group->choices.waiting -= !trial_waits(&class->trial);
    if (trial_open(&class->trial) && group->choices.trying != class) {
        group->choices.trying = class;
        group->choices.since = group->choices.calls;
    }
    ledger_chosen(class->row, &class->trial);
}

/* One trial at a time, so that its cost is known before the next is requested. No agreement with a known result: it
 * costs as much as a small call, which a short program would pay for each class. */
static bool may_agree(const struct choices *choices, struct trial *trial)
{
    if (!trial_waits(trial))
        return false;
    bool other = choices->trying != NULL && trial_open(&choices->trying->trial) &&
                 choices->calls - choices->since < TRIAL_PATIENCE;
    return !(trial->state == ASKING && (other || choices->calls < choices->asks_from)) && trial_due(trial);
}

/* Work of all members where they may wait for one another: agrees on one class, makes a group that was requested. */
static void meet(struct group *group)
{
    struct choices *choices = &group->choices;
    struct class *due = NULL;
    for (struct class *class = choices->classes; choices->waiting > 0 && class != NULL; class = class->next)
        if (due == NULL && may_agree(choices, &class->trial))
            due = class;
    if (due != NULL)
        agree(group, due);
    if (choices->groupless >= GROUPLESS_MOST && group->standing == GROUPLESS)
        group_make(group);
}

/* ---- the call ---- */

static enum way count(struct group *group, struct class *class, struct turn *turn)
{
    group->choices.calls++;
    bool waited = trial_waits(&class->trial);
    enum way way = trial_turn(&class->trial, &turn->of);
    group->choices.waiting += trial_waits(&class->trial) - waited;
    return way;
}

/* Persistent requests follow the current way of the nonblocking calls of their size. */
static void follow(const struct group *group, struct class *class)
{
    unsigned key = class_key(collective_of(class->key), NONBLOCKING, size_of(class->key));
    const struct class *like = class_find(&group->choices, key);
    if (like == NULL)
        return;
    class->trial.way = like->trial.way;
    class->trial.why = like->trial.why;
    ledger_chosen(class->row, &class->trial);
}

/* A nonblocking call cannot make a group: without one it goes natively and is not counted for trials. */
static enum way without_group(struct group *group, const struct class *class)
{
    group->choices.groupless += class->trial.way == OFFLOADED;
    return NATIVE;
}

/* Makes the missing group of the call. False on all members if such a call can have none. */
static bool equip(const struct method *method, enum form form, struct turn *turn)
{
    turn->began = PMPI_Wtime();
    if (form == PERSISTENT)
        turn->group = group_of_request(turn->group);
    else
        group_make(turn->group);
    bool fits = turn->group->standing == GROUPED && method->allows(turn->group, turn->bytes);
    if (!fits && form == PERSISTENT)
        group_drop(turn->group);
    return fits;
}

static void choose(const struct call *call, enum form form, struct group *group, struct turn *turn)
{
    const struct method *method = method_of(call->collective);
    if (form == BLOCKING && group->choices.classes != NULL)
        meet(group);
    if (!group_may_have(group) || !method->measure(call, group, &turn->bytes) ||
        (group->standing == GROUPED && !method->allows(group, turn->bytes)))
        return;
    struct class *class = class_of(group, class_key(call->collective, form, size_class(turn->bytes)));
    turn->class = class;
    turn->group = group;
    if (form == PERSISTENT)
        follow(group, class);
    turn->way = form == NONBLOCKING && group->standing == GROUPLESS ? without_group(group, class)
                                                                    : count(group, class, turn);
    turn->timed = turn->timed || turn->of.turn >= 0;
    group->choices.digest = (group->choices.digest ^ (class->key * WAYS + turn->way)) * 0x100000001b3u;
    if (turn->way == OFFLOADED && (form == PERSISTENT || group->standing == GROUPLESS) && !equip(method, form, turn)) {
        turn->way = NATIVE;
        turn->of.turn = -1; /* its time does not measure offloading */
    }
    ledger_counted(class->row, turn->way);
}

bool choice_offloads(const struct call *call, enum form form, struct turn *turn)
{
    struct group *group = group_of_call(call->comm);
    *turn = (struct turn){.way = NATIVE, .of = {.turn = -1}, .timed = report_wanted};
    if (group != NULL && group->standing != REFUSED)
        choose(call, form, group, turn);
    if (turn->timed && turn->began == 0)
        turn->began = PMPI_Wtime();
    return turn->way == OFFLOADED;
}

void choice_timed(struct class *class, enum way way, const struct turn_of *of, double seconds, double lost)
{
    ledger_timed(class->row, way, seconds);
    if (of->turn < 0)
        return;
    pthread_mutex_lock(&lock);
    excess += trial_note(&class->trial, of, seconds + lost);
    pthread_mutex_unlock(&lock);
}

void choice_passed_timed(const struct turn *turn, enum form form, MPI_Request made)
{
    double seconds = PMPI_Wtime() - turn->began;
    report_passing_took(seconds);
    if (turn->class == NULL)
        return;
    if (form == NONBLOCKING)
        timings_enter(made, turn, seconds);
    else
        choice_timed(turn->class, NATIVE, &turn->of, seconds, 0);
}
