/*
 * trials.c: the trial of one class of calls on one communicator, as a state machine without MPI and without clock.
 *
 * All members count the calls of a class equally, so the way of a call follows from its number and the agreements.
 * Times are local and decide nothing before the members have agreed on the maximum of each turn.
 *
 *   state     calls go          left by                                   to
 *   RESTING   the chosen way    the call number `next`                    ASKING
 *   ASKING    the chosen way    agreed: trials may cost more              TRYING, short
 *                               agreed: it is too early for any trial     ASKING, when trial_too_early() says
 *                               agreed: this one would cost too much      RESTING until 2 to 16 times as many calls
 *   TRYING    by turn           the last turn                             JUDGING
 *   JUDGING   the chosen way    agreed: a rank lacks a time               JUDGING, 1, 2, 4, ... blocking calls later;
 *                                                                         RESTING, as it was, after MISSES_MOST
 *                               agreed: one way is hopeless               DECIDED for the other
 *                               agreed: neither, and more turns may cost  TRYING, longer
 *                               agreed: neither, after a long trial, or
 *                               trials have cost enough                   RESTING with the faster way, in the second
 *                                                                         case until a long one may be paid for
 *   DECIDED   the chosen way    nothing
 *
 * A run is measured by the mean of its turns on the slowest rank, not by the mean of the slowest rank of each turn:
 * where ranks wait for one another in turn, the program waits only once. A way is hopeless if its median is twice the
 * other's. A short trial has one run each way, and a single late rank spoils a mean of four. After it a way is
 * hopeless if its fastest turn takes twice as long as the other's slowest. If neither is hopeless, the mean over
 * launches decides: an MPI library may take 2 ms in one launch and 4 ms in the next, and no launch can predict the
 * next one.
 *
 * Invariants: all fields but `seconds` and `charged` are equal on all members between two calls. A trial has as many
 * turns one way as the other.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "trials.h"

#define FIRST_GAP 1000
#define MISSES_MOST 6
/* This many launches begin their trials early, finished or not. This many count in a mean. */
#define LAUNCHES 4
/* The part of the time since MPI_Init that trials may cost. */
#define BUDGET 0.01
/* The least expected cost of a trial in seconds, so programs that end within half a second try nothing. */
#define EXPECTED 0.005
/* The bounds of again_at(), in multiples of the calls so far. */
#define AGAIN_LEAST 2
#define AGAIN_MOST 16
/* A way this many times slower is given up for good. */
#define HOPELESS 2.0
/* Offloaded calls must be this much faster: a service process takes processor time that the time in MPI does not
 * include. Also, native calls in a trial follow offloaded ones, and so take longer than after native calls. */
#define MARGIN 1.15

enum way trial_faster(const double *seconds)
{
    return seconds[OFFLOADED] * MARGIN < seconds[NATIVE] ? OFFLOADED : NATIVE;
}

void trial_start(struct trial *trial, enum way way, enum why why, const struct learnt *before, uint64_t first)
{
    *trial = (struct trial){.way = way, .why = why, .gap = FIRST_GAP, .before = *before, .learnt = *before};
    trial->state = first > 0 ? RESTING : DECIDED;
    /* This holds even if one way was hopeless: that launch may have shared its processors. */
    trial->next = before->launches + before->unfinished < LAUNCHES ? first : FIRST_GAP;
}

/* Runs alternate in the Thue-Morse order, so drift and alternation favour neither way. */
static enum way way_of(const struct trial *trial, int turn)
{
    bool odd = __builtin_parity((unsigned)(turn / TRIAL_RUN));
    return odd ? WAYS - 1 - trial->way : trial->way;
}

enum way trial_turn(struct trial *trial, struct turn_of *turn)
{
    turn->turn = -1;
    trial->calls++;
    if (trial->state == RESTING && trial->calls >= trial->next)
        trial->state = ASKING;
    if (trial->state != TRYING)
        return trial->way;
    *turn = (struct turn_of){trial->turns++, trial->serial};
    if (trial->turns == trial->until)
        trial->state = JUDGING;
    return way_of(trial, turn->turn);
}

double trial_note(struct trial *trial, const struct turn_of *turn, double seconds)
{
    if (turn->turn < 0 || turn->serial != trial->serial)
        return 0;
    double charge = way_of(trial, turn->turn) == trial->way ? 0 : seconds;
    trial->seconds[turn->turn] = seconds;
    trial->charged += charge;
    return charge;
}

bool trial_waits(const struct trial *trial)
{
    return trial->state == ASKING || trial->state == JUDGING;
}

bool trial_open(const struct trial *trial)
{
    return trial->state == TRYING || trial->state == JUDGING;
}

bool trial_due(struct trial *trial)
{
    assert(trial_waits(trial));
    if (trial->skip == 0)
        return true;
    trial->skip--;
    return false;
}

void trial_fill(const struct trial *trial, unsigned class_key, double excess, double elapsed, double *vector)
{
    for (int run = 0; run < TRIAL_RUNS; run++)
        vector[VECTOR_RUNS + run] = 0;
    for (int turn = 0; turn < TRIAL_TURNS; turn++) {
        double seconds = turn < trial->turns ? trial->seconds[turn] : 0;
        vector[VECTOR_SECONDS + turn] = seconds;
        vector[VECTOR_RUNS + turn / TRIAL_RUN] += turn % TRIAL_RUN == 0 ? 0 : seconds / (TRIAL_RUN - 1);
    }
    /* The mark fits a double exactly. */
    uint64_t mark = ((uint64_t)class_key << 32) + ((trial->calls & 0x3ffffff) << 6) + (uint64_t)trial->turns;
    vector[VECTOR_MARK] = (double)mark;
    vector[VECTOR_UNMARK] = -(double)mark;
    vector[VECTOR_EXCESS] = excess - trial->charged; /* the agreed seconds give the cost of this trial */
    vector[VECTOR_ELAPSED] = -elapsed;
}

static void begin(struct trial *trial)
{
    trial->state = TRYING;
    trial->serial++;
    if (trial->why != TRIED)
        trial->learnt.unfinished = trial->before.unfinished + 1;
    trial->until = TRIAL_TURNS_SHORT;
    for (int turn = 0; turn < TRIAL_TURNS; turn++)
        trial->seconds[turn] = INFINITY;
}

static void rest(struct trial *trial)
{
    trial->state = RESTING;
    trial->turns = trial->misses = trial->skip = 0;
    trial->serial++; /* later times of the old trial are ignored */
    trial->charged = 0; /* charges of a trial that was given up stay charged */
    trial->next = trial->calls + trial->gap;
    trial->gap *= 2;
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The median over the runs of one way. */
static double median_of(const struct trial *trial, const double *runs, enum way way)
{
    double sorted[TRIAL_RUNS];
    size_t count = 0;
    for (int run = 0; run < trial->turns / TRIAL_RUN; run++)
        if (way_of(trial, run * TRIAL_RUN) == way)
            sorted[count++] = runs[run];
    qsort(sorted, count, sizeof *sorted, ascending);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static bool hopeless(const double *median)
{
    return median[NATIVE] > 0 && median[OFFLOADED] > 0 &&
           (median[NATIVE] >= HOPELESS * median[OFFLOADED] || median[OFFLOADED] >= HOPELESS * median[NATIVE]);
}

bool trial_sure(const struct learnt *learnt)
{
    return learnt->launches >= LAUNCHES || hopeless(learnt->seconds);
}

/* Whether each timed turn of one way took twice as long as every turn of the other. */
static bool hopeless_by_turns(const struct trial *trial, const double *seconds)
{
    double least[WAYS] = {INFINITY, INFINITY}, most[WAYS] = {0, 0};
    for (int turn = 0; turn < trial->turns; turn++) {
        enum way way = way_of(trial, turn);
        if (turn % TRIAL_RUN == 0)
            continue;
        least[way] = fmin(least[way], seconds[turn]);
        most[way] = fmax(most[way], seconds[turn]);
    }
    return least[NATIVE] >= HOPELESS * most[OFFLOADED] || least[OFFLOADED] >= HOPELESS * most[NATIVE];
}

/* The time of the slower way's turns beyond the median of the faster way. */
static double excess_of(const struct trial *trial, const double *seconds, const double *median, enum way slower)
{
    double excess = 0;
    for (int turn = 0; turn < trial->turns; turn++)
        if (way_of(trial, turn) == slower && seconds[turn] > median[WAYS - 1 - slower])
            excess += seconds[turn] - median[WAYS - 1 - slower];
    return excess;
}

/* The factor by which the program's time must grow before trials may cost `excess` more: at most 1 if they may now. */
static double times_as_long(double excess, const double *vector)
{
    return (vector[VECTOR_EXCESS] + excess) / (BUDGET * -vector[VECTOR_ELAPSED]);
}

/* The call at which trials may cost `excess` more, at the current rate of calls. */
static uint64_t again_at(const struct trial *trial, double excess, const double *vector)
{
    return (uint64_t)((double)trial->calls * fmin(fmax(times_as_long(excess, vector), AGAIN_LEAST), AGAIN_MOST));
}

double trial_too_early(const double *vector)
{
    return fmin(times_as_long(EXPECTED, vector), AGAIN_MOST);
}

/* The least cost of a trial, estimated from earlier ones. */
static double expected(const struct trial *trial)
{
    return fmax(EXPECTED, TRIAL_RUN * fabs(trial->learnt.seconds[NATIVE] - trial->learnt.seconds[OFFLOADED]));
}

/* Updates the mean over earlier launches and this one. Only LAUNCHES count, so a lasting change wins in the end. */
static void learn(struct trial *trial, const double *median)
{
    unsigned before = trial->before.launches < LAUNCHES ? trial->before.launches : LAUNCHES - 1;
    trial->learnt.launches = before + 1;
    trial->learnt.unfinished = 0;
    for (enum way way = 0; way < WAYS; way++)
        trial->learnt.seconds[way] = (before * trial->before.seconds[way] + median[way]) / (before + 1);
}

static double judge(struct trial *trial, const double *vector)
{
    const double *seconds = vector + VECTOR_SECONDS;
    double median[WAYS];
    for (enum way way = 0; way < WAYS; way++)
        median[way] = median_of(trial, vector + VECTOR_RUNS, way);
    learn(trial, median);
    bool clear = trial->until == TRIAL_TURNS ? hopeless(median) : hopeless_by_turns(trial, seconds);
    enum way faster = trial_faster(clear ? median : trial->learnt.seconds);
    double excess = excess_of(trial, seconds, median, WAYS - 1 - faster), charged = trial->charged;
    double each = fabs(median[NATIVE] - median[OFFLOADED]);
    int more = clear ? 0 : TRIAL_TURNS - trial->until;
    double whole = excess + each * more / 2;
    if (more > 0 && times_as_long(whole, vector) <= 1) {
        trial->until = TRIAL_TURNS;
        trial->state = TRYING;
        return 0;
    }
    trial->way = faster;
    trial->why = TRIED;
    rest(trial);
    if (clear)
        trial->state = DECIDED;
    uint64_t sooner = again_at(trial, whole, vector);
    if (more > 0 && sooner < trial->next)
        trial->next = sooner; /* one run each way may mislead */
    return excess - charged;
}

double trial_agree(struct trial *trial, const double *vector)
{
    assert(trial_waits(trial));
    if (trial->state == ASKING) {
        if (times_as_long(expected(trial), vector) <= 1) {
            begin(trial);
        } else if (trial_too_early(vector) <= 1) {
            trial->state = RESTING;
            trial->next = again_at(trial, expected(trial), vector);
        }
        return 0;
    }
    for (int turn = 0; turn < trial->turns; turn++) {
        if (isfinite(vector[VECTOR_SECONDS + turn]))
            continue;
        trial->skip = 1 << trial->misses++;
        if (trial->misses == MISSES_MOST)
            rest(trial);
        return 0;
    }
    return judge(trial, vector);
}
