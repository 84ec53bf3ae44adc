/*
 * trials.c: all members of a communicator choose equally, whatever their clocks show.
 *
 * Drives src/trials.c alone, without MPI. In each run some members call a class again and again. Native and offloaded
 * calls take random times and let ranks go at different times. Members are delayed at random, and some times are known
 * late or never. Every rank must take the same path at each call, trials must cost little, and in the end the faster
 * path must be chosen. Prints TAP; the argument is the number of runs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../src/trials.h"

#define RANKS_MOST 6

static const struct estimate unknown;

struct run {
    int ranks, blocking;    /* if not `blocking`, only every eighth call blocks, in another class */
    int classes;            /* classes run one after another; the last has the most calls */
    enum path start;
    double call_seconds[PATHS], noise;
    double exit_spread[PATHS];     /* spread of ranks leaving a call; the next call waits for the last */
    double imbalance[PATHS];       /* how much less one rank waits in a call, and more in the next */
    enum path before;              /* the path of the previous call */
    double calls, no_trial_before; /* calls so far, and the call from which trials may be requested */
    double forget;          /* how often a time is never known */
    struct trial trial[RANKS_MOST];
    struct trial_turn late[RANKS_MOST]; /* turns whose time is known only at the next call */
    double late_seconds[RANKS_MOST];
    double now, excess[RANKS_MOST], trial_excess;
    int bad;
};

static uint64_t state;

static double random_unit(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

static struct run begin_run(uint64_t seed)
{
    struct run run = {.ranks = 2 + (int)(seed % (RANKS_MOST - 1)), .blocking = seed % 3 != 0};
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        random_unit();
    run.call_seconds[NATIVE] = exp(-12 + 9 * random_unit());
    run.call_seconds[OFFLOADED] = run.call_seconds[NATIVE] * exp(4 * random_unit() - 2);
    for (enum path path = 0; path < PATHS; path++)
        run.exit_spread[path] = seed % 2 * run.call_seconds[path] * random_unit() * 3;
    run.imbalance[seed / 2 % PATHS] = seed % 7 == 0 ? random_unit() : 0;
    run.noise = random_unit() * 0.2;
    run.forget = seed % 5 == 0 ? 0.3 * random_unit() : 0;
    run.start = random_unit() < 0.5 ? NATIVE : OFFLOADED;
    run.classes = seed % 4 == 1 ? 40 : 1;
    return run;
}

/* Starts a class with the results `prior` of earlier launches, if there are any. */
static void begin_class(struct run *run, const struct estimate *prior)
{
    enum path start = prior->launches > 0 ? trial_faster(prior->seconds) : run->start;
    for (int rank = 0; rank < run->ranks; rank++) {
        trial_start(&run->trial[rank], start, prior->launches > 0 ? BY_CACHE : BY_RULE, prior, 3);
        run->late[rank].number = -1;
    }
}

/* The cost of a call that follows others on its path. */
static double steady_seconds(const struct run *run, enum path path)
{
    return run->call_seconds[path] + run->exit_spread[path];
}

static void agree_on_class(struct run *run)
{
    double all[VECTOR_LENGTH], vector[VECTOR_LENGTH];
    int due = 0;
    if (run->trial[0].state == REQUESTING && run->calls < run->no_trial_before)
        return;
    for (int rank = 0; rank < run->ranks; rank++)
        due += trial_awaits_agreement(&run->trial[rank]) && trial_due(&run->trial[rank]);
    run->bad += due != 0 && due != run->ranks;
    if (due != run->ranks)
        return;
    for (int entry = 0; entry < VECTOR_LENGTH; entry++)
        all[entry] = -INFINITY;
    for (int rank = 0; rank < run->ranks; rank++) {
        trial_fill_vector(&run->trial[rank], 7, run->excess[rank], run->now * (1 + 0.1 * random_unit()), vector);
        for (int entry = 0; entry < VECTOR_LENGTH; entry++)
            all[entry] = fmax(all[entry], vector[entry]);
        run->bad += vector[VECTOR_MARK] != -vector[VECTOR_UNMARK];
    }
    run->bad += all[VECTOR_MARK] != -all[VECTOR_UNMARK];
    run->no_trial_before = run->calls * trial_growth_needed(all);
    for (int rank = 0; rank < run->ranks; rank++)
        run->excess[rank] += trial_apply_agreement(&run->trial[rank], all);
}

/* The call of one rank; its time includes the lateness of another rank. */
static enum path call(struct run *run, int rank, double lateness)
{
    struct trial_turn turn;
    run->excess[rank] += trial_record(&run->trial[rank], &run->late[rank], run->late_seconds[rank]);
    run->late[rank].number = -1;
    enum path path = trial_count_call(&run->trial[rank], &turn);
    double leaning = run->imbalance[path] * ((run->trial[rank].calls + (uint64_t)rank) % 2 == 0 ? 1 : -1);
    double seconds =
        run->call_seconds[path] * (1 + leaning + run->noise * random_unit()) + run->exit_spread[run->before] + lateness;
    if (random_unit() < run->forget)
        return path;
    if (random_unit() < 0.5) {
        run->late[rank] = turn;
        run->late_seconds[rank] = seconds;
    } else {
        run->excess[rank] += trial_record(&run->trial[rank], &turn, seconds);
    }
    return path;
}

static void carry_out(struct run *run, int calls, const struct estimate *prior)
{
    begin_class(run, prior);
    for (int turn = 0; turn < calls; turn++) {
        double lateness = random_unit() < 0.05 ? run->call_seconds[NATIVE] * random_unit() : 0;
        if (run->blocking || turn % 8 == 0)
            agree_on_class(run);
        enum path usual = run->trial[0].path;
        bool tries = run->trial[0].state == TRYING;
        enum path first = call(run, 0, lateness);
        for (int rank = 1; rank < run->ranks; rank++)
            run->bad += call(run, rank, lateness) != first;
        double best = fmin(steady_seconds(run, NATIVE), steady_seconds(run, OFFLOADED));
        run->trial_excess += tries && first != usual ? steady_seconds(run, first) - steady_seconds(run, usual) : 0;
        run->calls++;
        run->now += run->call_seconds[first] + run->exit_spread[run->before] + 5 * best;
        run->before = first;
    }
}

/* Whether a run has chosen the slower of two clearly different paths. Counts runs whose times all become known and that
 * last long enough. */
static int wrong_in_the_end(const struct run *run)
{
    enum path path = run->trial[0].path;
    double turn = steady_seconds(run, NATIVE) + steady_seconds(run, OFFLOADED);
    if (run->forget > 0 || (run->trial[0].reason != BY_TRIAL && (run->classes > 1 || run->now < 5 + 400 * turn)))
        return 0;
    return steady_seconds(run, path) > 1.3 * steady_seconds(run, PATHS - 1 - path);
}

/* Trials together must not cost more than one part in a hundred, plus the cost of the last trial begun. */
static int costly(const struct run *run)
{
    double worst = fabs(steady_seconds(run, NATIVE) - steady_seconds(run, OFFLOADED)) * TRIAL_TURNS * 2;
    return run->trial_excess > 0.01 * run->now + worst;
}

/* Native calls are fast in some launches and slow in others, in any order. Offloaded calls lie in between. */
static int misled_by_one_launch(uint64_t seed)
{
    struct estimate estimate = unknown;
    double offloaded = seed % 3 == 0 ? 1.6e-3 : 1.15e-3, mean = 0;
    for (int launch = 0; launch < 4; launch++) {
        struct run run = {.ranks = 2, .blocking = 1, .now = 100}; /* the late time lets trials cost enough */
        run.call_seconds[NATIVE] = seed >> launch & 1 ? 1.7e-3 : 1e-3;
        run.call_seconds[OFFLOADED] = offloaded;
        mean += run.call_seconds[NATIVE] / 4;
        carry_out(&run, 200, &estimate);
        estimate = run.trial[0].estimate;
    }
    enum path faster = mean > offloaded ? OFFLOADED : NATIVE;
    bool alike = fabs(mean / offloaded - 1) < 0.25;
    return estimate.launches != 4 || (!alike && trial_faster(estimate.seconds) != faster);
}

/* Launches that end in the middle of their trial: after four of them the next one tries nothing. */
static int tries_without_end(uint64_t seed)
{
    struct estimate estimate = unknown;
    int bad = 0;
    for (unsigned launch = 0; launch < 6; launch++) {
        struct run run = {.ranks = 2, .blocking = 1, .now = 100, .call_seconds = {1e-3, 1e-3}};
        carry_out(&run, 4 + (int)(seed % TRIAL_TURNS_SHORT), &estimate);
        estimate = run.trial[0].estimate;
        bad += estimate.launches != 0 || estimate.unfinished != (launch < 4 ? launch + 1 : 4);
    }
    struct run run = {.ranks = 2, .blocking = 1, .now = 100, .call_seconds = {1e-3, 1e-3}};
    carry_out(&run, 2055, &estimate); /* the first trial has ended, the second has not */
    estimate = run.trial[0].estimate;
    return bad + (estimate.launches != 1 || estimate.unfinished != 0 || !trial_open(&run.trial[0]));
}

static int report(int number, const char *what, int bad)
{
    printf("%s %d - %s (%d)\n", bad == 0 ? "ok" : "not ok", number, what, bad);
    return bad != 0;
}

int main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 10000, unalike = 0, wrong = 0, expensive = 0, tried = 0, misled = 0,
        endless = 0;
    for (int seed = 0; seed < runs; seed++) {
        struct run run = begin_run((uint64_t)seed);
        for (int class = 1; class < run.classes; class++)
            carry_out(&run, 40, &unknown);
        carry_out(&run, 400 + seed % 100 * 30, &unknown);
        unalike += run.bad != 0;
        wrong += wrong_in_the_end(&run);
        expensive += costly(&run);
        tried += run.trial[0].reason == BY_TRIAL;
        misled += misled_by_one_launch((uint64_t)seed);
        endless += tries_without_end((uint64_t)seed);
    }
    printf("1..6\n# %d runs, %d of them tried\n", runs, tried);
    return report(1, "all ranks choose alike", unalike) + report(2, "the faster way is taken in the end", wrong) +
           report(3, "trials cost little", expensive) + report(4, "many runs try", tried < runs / 4) +
           report(5, "no single launch decides for later ones", misled) +
           report(6, "launches too short for a trial stop trying", endless);
}
