/*
 * trials.c: the trial of one class of calls on one communicator, as a state machine without MPI and without clock.
 *
 * All members count the calls of a class equally, so the path of a call follows from its number and the agreements.
 * Times are local and decide nothing before the members have agreed on the maximum of each turn.
 *
 *   state        calls take        left by                                   to
 *   RESTING      the chosen path   the call number `next_trial`              REQUESTING
 *   REQUESTING   the chosen path   agreed: trials may cost more              TRYING, short
 *                                  agreed: it is too early for any trial     REQUESTING, see trial_growth_needed()
 *                                  agreed: this one would cost too much      RESTING for 2 to 16 times as many calls
 *   TRYING       the turn's path   the last turn                             JUDGING
 *   JUDGING      the chosen path   agreed: a rank lacks a time               JUDGING, 1, 2, 4, ... blocking calls
 *                                                                            later; RESTING, as it was, at MISSES_MAX
 *                                  agreed: one path is hopeless              DECIDED for the other
 *                                  agreed: neither, and more turns may cost  TRYING, longer
 *                                  agreed: neither, after a long trial, or
 *                                  trials have cost enough                   RESTING with the faster path; in the
 *                                                                            second case until a long trial may be paid
 *   DECIDED      the chosen path   nothing
 *
 * Each rank takes the mean of a run's turns; the slowest rank's mean is the time of the run. The slowest ranks of the
 * single turns do not count: where ranks wait for one another in turn, the program waits only once. A path is hopeless
 * if its median is twice the other's. A short trial has one run on each path, and a single late rank spoils a mean of
 * four. So after a short trial a path is hopeless if its fastest turn takes twice as long as the slowest turn of the
 * other path. If neither path is hopeless, the mean over launches decides: an MPI library may take 2 ms in one launch
 * and 4 ms in the next, and no launch can predict the next one.
 *
 * Invariants: all fields but `seconds` and `charged` are equal on all members between two calls. A trial has as many
 * turns on one path as on the other.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "trials.h"

#define FIRST_GAP 1000
#define MISSES_MAX 6
/* This many launches begin their trials early, finished or not. The mean counts this many launches. */
#define LAUNCHES 4
/* The part of the time since MPI_Init that trials may cost. */
#define BUDGET 0.01
/* The least expected cost of a trial in seconds, so programs that end within half a second try nothing. */
#define EXPECTED_COST_MIN 0.005
/* The bounds of affordable_at(), in multiples of the calls so far. */
#define WAIT_FACTOR_MIN 2
#define WAIT_FACTOR_MAX 16
/* A path this many times slower is given up for good. */
#define HOPELESS 2.0
/* Offloaded calls must be this much faster: a service process takes processor time that the time in MPI does not
 * include. Also, native calls in a trial follow offloaded ones, and so take longer than after native calls. */
#define MARGIN 1.15

enum path trial_faster(const double *seconds)
{
    return seconds[OFFLOADED] * MARGIN < seconds[NATIVE] ? OFFLOADED : NATIVE;
}

void trial_start(struct trial *trial, enum path path, enum reason reason, const struct estimate *prior, uint64_t first)
{
    *trial = (struct trial){.path = path, .reason = reason, .gap = FIRST_GAP, .prior = *prior, .estimate = *prior};
    trial->state = first > 0 ? RESTING : DECIDED;
    /* A class tries again even if one path was hopeless: that launch may have shared its processors. */
    trial->next_trial = prior->launches + prior->unfinished < LAUNCHES ? first : FIRST_GAP;
}

/* Runs alternate in the Thue-Morse order, so drift and alternation favour neither path. */
static enum path path_of_turn(const struct trial *trial, int turn)
{
    bool odd = __builtin_parity((unsigned)(turn / TRIAL_RUN));
    return odd ? PATHS - 1 - trial->path : trial->path;
}

enum path trial_count_call(struct trial *trial, struct trial_turn *turn)
{
    turn->number = -1;
    trial->calls++;
    if (trial->state == RESTING && trial->calls >= trial->next_trial)
        trial->state = REQUESTING;
    if (trial->state != TRYING)
        return trial->path;
    *turn = (struct trial_turn){trial->turns++, trial->serial};
    if (trial->turns == trial->judged_at)
        trial->state = JUDGING;
    return path_of_turn(trial, turn->number);
}

double trial_record(struct trial *trial, const struct trial_turn *turn, double seconds)
{
    if (turn->number < 0 || turn->serial != trial->serial)
        return 0;
    double charge = path_of_turn(trial, turn->number) == trial->path ? 0 : seconds;
    trial->seconds[turn->number] = seconds;
    trial->charged += charge;
    return charge;
}

bool trial_awaits_agreement(const struct trial *trial)
{
    return trial->state == REQUESTING || trial->state == JUDGING;
}

bool trial_open(const struct trial *trial)
{
    return trial->state == TRYING || trial->state == JUDGING;
}

bool trial_due(struct trial *trial)
{
    assert(trial_awaits_agreement(trial));
    if (trial->calls_to_skip == 0)
        return true;
    trial->calls_to_skip--;
    return false;
}

void trial_fill_vector(const struct trial *trial, unsigned class_key, double excess, double elapsed, double *vector)
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

static void begin_trial(struct trial *trial)
{
    trial->state = TRYING;
    trial->serial++;
    if (trial->reason != BY_TRIAL)
        trial->estimate.unfinished = trial->prior.unfinished + 1;
    trial->judged_at = TRIAL_TURNS_SHORT;
    for (int turn = 0; turn < TRIAL_TURNS; turn++)
        trial->seconds[turn] = INFINITY;
}

static void end_trial(struct trial *trial)
{
    trial->state = RESTING;
    trial->turns = trial->misses = trial->calls_to_skip = 0;
    trial->serial++; /* later times of the old trial are ignored */
    trial->charged = 0; /* charges of a trial that was given up stay charged */
    trial->next_trial = trial->calls + trial->gap;
    trial->gap *= 2;
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The median over the runs of one path. */
static double median_of(const struct trial *trial, const double *runs, enum path path)
{
    double sorted[TRIAL_RUNS];
    size_t count = 0;
    for (int run = 0; run < trial->turns / TRIAL_RUN; run++)
        if (path_of_turn(trial, run * TRIAL_RUN) == path)
            sorted[count++] = runs[run];
    qsort(sorted, count, sizeof *sorted, ascending);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static bool hopeless(const double *median)
{
    return median[NATIVE] > 0 && median[OFFLOADED] > 0 &&
           (median[NATIVE] >= HOPELESS * median[OFFLOADED] || median[OFFLOADED] >= HOPELESS * median[NATIVE]);
}

bool trial_conclusive(const struct estimate *estimate)
{
    return estimate->launches >= LAUNCHES || hopeless(estimate->seconds);
}

/* Whether each timed turn of one path took twice as long as every turn of the other. */
static bool hopeless_by_turns(const struct trial *trial, const double *seconds)
{
    double least[PATHS] = {INFINITY, INFINITY}, most[PATHS] = {0, 0};
    for (int turn = 0; turn < trial->turns; turn++) {
        enum path path = path_of_turn(trial, turn);
        if (turn % TRIAL_RUN == 0)
            continue;
        least[path] = smaller(least[path], seconds[turn]);
        most[path] = larger(most[path], seconds[turn]);
    }
    return least[NATIVE] >= HOPELESS * most[OFFLOADED] || least[OFFLOADED] >= HOPELESS * most[NATIVE];
}

/* The time of the slower path's turns beyond the median of the faster path. */
static double excess_of(const struct trial *trial, const double *seconds, const double *median, enum path slower)
{
    double excess = 0;
    for (int turn = 0; turn < trial->turns; turn++)
        if (path_of_turn(trial, turn) == slower && seconds[turn] > median[PATHS - 1 - slower])
            excess += seconds[turn] - median[PATHS - 1 - slower];
    return excess;
}

/* The factor by which the program's time must grow before trials may cost `excess` more; at most 1 if now is enough. */
static double growth_needed(double excess, const double *vector)
{
    return (vector[VECTOR_EXCESS] + excess) / (BUDGET * -vector[VECTOR_ELAPSED]);
}

/* The call at which trials may cost `excess` more, at the current rate of calls. */
static uint64_t affordable_at(const struct trial *trial, double excess, const double *vector)
{
    return (uint64_t)((double)trial->calls *
                      smaller(larger(growth_needed(excess, vector), WAIT_FACTOR_MIN), WAIT_FACTOR_MAX));
}

double trial_growth_needed(const double *vector)
{
    return smaller(growth_needed(EXPECTED_COST_MIN, vector), WAIT_FACTOR_MAX);
}

/* The least cost of a trial, estimated from earlier ones. */
static double expected_cost(const struct trial *trial)
{
    return larger(EXPECTED_COST_MIN,
                TRIAL_RUN * fabs(trial->estimate.seconds[NATIVE] - trial->estimate.seconds[OFFLOADED]));
}

/* Updates the mean over earlier launches and this one. Only LAUNCHES count, so a lasting change wins in the end. */
static void update_estimate(struct trial *trial, const double *median)
{
    unsigned prior = trial->prior.launches < LAUNCHES ? trial->prior.launches : LAUNCHES - 1;
    trial->estimate.launches = prior + 1;
    trial->estimate.unfinished = 0;
    for (enum path path = 0; path < PATHS; path++)
        trial->estimate.seconds[path] = (prior * trial->prior.seconds[path] + median[path]) / (prior + 1);
}

static double judge_trial(struct trial *trial, const double *vector)
{
    const double *seconds = vector + VECTOR_SECONDS;
    double median[PATHS];
    for (enum path path = 0; path < PATHS; path++)
        median[path] = median_of(trial, vector + VECTOR_RUNS, path);
    update_estimate(trial, median);
    bool clear = trial->judged_at == TRIAL_TURNS ? hopeless(median) : hopeless_by_turns(trial, seconds);
    enum path faster = trial_faster(clear ? median : trial->estimate.seconds);
    double excess = excess_of(trial, seconds, median, PATHS - 1 - faster), charged = trial->charged;
    double each = fabs(median[NATIVE] - median[OFFLOADED]);
    int more = clear ? 0 : TRIAL_TURNS - trial->judged_at;
    double whole = excess + each * more / 2;
    if (more > 0 && growth_needed(whole, vector) <= 1) {
        trial->judged_at = TRIAL_TURNS;
        trial->state = TRYING;
        return 0;
    }
    trial->path = faster;
    trial->reason = BY_TRIAL;
    end_trial(trial);
    if (clear)
        trial->state = DECIDED;
    uint64_t sooner = affordable_at(trial, whole, vector);
    if (more > 0 && sooner < trial->next_trial)
        trial->next_trial = sooner; /* one run on each path may mislead */
    return excess - charged;
}

double trial_apply_agreement(struct trial *trial, const double *vector)
{
    assert(trial_awaits_agreement(trial));
    if (trial->state == REQUESTING) {
        if (growth_needed(expected_cost(trial), vector) <= 1) {
            begin_trial(trial);
        } else if (trial_growth_needed(vector) <= 1) {
            trial->state = RESTING;
            trial->next_trial = affordable_at(trial, expected_cost(trial), vector);
        }
        return 0;
    }
    for (int turn = 0; turn < trial->turns; turn++) {
        if (isfinite(vector[VECTOR_SECONDS + turn]))
            continue;
        trial->calls_to_skip = 1 << trial->misses++;
        if (trial->misses == MISSES_MAX)
            end_trial(trial);
        return 0;
    }
    return judge_trial(trial, vector);
}
