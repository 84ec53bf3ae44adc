/*
 * trials.c: all members of a communicator choose equally, whatever their clocks show.
 *
 * Drives src/trials.c alone, without MPI. In each run some members call a class again and again. Native and offloaded
 * calls take random times and let ranks go at different times. Members are delayed at random, and some times are known
 * late or never. Every rank must go the same way at each call, trials must cost little, and in the end the faster way
 * must be chosen. Prints TAP; the argument is the number of runs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../src/trials.h"

#define RANKS_MOST 6

static const struct learnt unknown;

struct run {
    int ranks, blocking;    /* all calls are blocking, or every eighth one is, of another class */
    int classes;            /* one after another; the last has the most calls */
    enum way start;
    double takes[WAYS], noise;
    double leaves[WAYS];    /* spread of ranks leaving a call; the next one waits for it */
    double leans[WAYS];     /* how much less one rank waits in a call, and more in the next */
    enum way before;        /* of the previous call */
    double calls, asks_from; /* so far, and number from which a trial may be requested */
    double forget;          /* how often a time is never known */
    struct trial trial[RANKS_MOST];
    struct turn_of late[RANKS_MOST]; /* known at the next call */
    double late_seconds[RANKS_MOST];
    double now, excess[RANKS_MOST], trial_excess;
    int bad;
};

static uint64_t state;

static double drawn(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

static struct run begin(uint64_t seed)
{
    struct run run = {.ranks = 2 + (int)(seed % (RANKS_MOST - 1)), .blocking = seed % 3 != 0};
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        drawn();
    run.takes[NATIVE] = exp(-12 + 9 * drawn());
    run.takes[OFFLOADED] = run.takes[NATIVE] * exp(4 * drawn() - 2);
    for (enum way way = 0; way < WAYS; way++)
        run.leaves[way] = seed % 2 * run.takes[way] * drawn() * 3;
    run.leans[seed / 2 % WAYS] = seed % 7 == 0 ? drawn() : 0;
    run.noise = drawn() * 0.2;
    run.forget = seed % 5 == 0 ? 0.3 * drawn() : 0;
    run.start = drawn() < 0.5 ? NATIVE : OFFLOADED;
    run.classes = seed % 4 == 1 ? 40 : 1;
    return run;
}

/* Starts a class that remembers `before`, if that is not empty. */
static void begin_class(struct run *run, const struct learnt *before)
{
    enum way start = before->launches > 0 ? trial_faster(before->seconds) : run->start;
    for (int rank = 0; rank < run->ranks; rank++) {
        trial_start(&run->trial[rank], start, before->launches > 0 ? REMEMBERED : BUILT_IN, before, 3);
        run->late[rank].turn = -1;
    }
}

/* The cost of a call that follows others of its way. */
static double steady(const struct run *run, enum way way)
{
    return run->takes[way] + run->leaves[way];
}

static void agree(struct run *run)
{
    double all[VECTOR_LENGTH], vector[VECTOR_LENGTH];
    int due = 0;
    if (run->trial[0].state == ASKING && run->calls < run->asks_from)
        return;
    for (int rank = 0; rank < run->ranks; rank++)
        due += trial_waits(&run->trial[rank]) && trial_due(&run->trial[rank]);
    run->bad += due != 0 && due != run->ranks;
    if (due != run->ranks)
        return;
    for (int entry = 0; entry < VECTOR_LENGTH; entry++)
        all[entry] = -INFINITY;
    for (int rank = 0; rank < run->ranks; rank++) {
        trial_fill(&run->trial[rank], 7, run->excess[rank], run->now * (1 + 0.1 * drawn()), vector);
        for (int entry = 0; entry < VECTOR_LENGTH; entry++)
            all[entry] = fmax(all[entry], vector[entry]);
        run->bad += vector[VECTOR_MARK] != -vector[VECTOR_UNMARK];
    }
    run->bad += all[VECTOR_MARK] != -all[VECTOR_UNMARK];
    run->asks_from = run->calls * trial_too_early(all);
    for (int rank = 0; rank < run->ranks; rank++)
        run->excess[rank] += trial_agree(&run->trial[rank], all);
}

/* The call of one rank; its time includes the lateness of another rank. */
static enum way call(struct run *run, int rank, double lateness)
{
    struct turn_of turn;
    run->excess[rank] += trial_note(&run->trial[rank], &run->late[rank], run->late_seconds[rank]);
    run->late[rank].turn = -1;
    enum way way = trial_turn(&run->trial[rank], &turn);
    double leaning = run->leans[way] * ((run->trial[rank].calls + (uint64_t)rank) % 2 == 0 ? 1 : -1);
    double seconds = run->takes[way] * (1 + leaning + run->noise * drawn()) + run->leaves[run->before] + lateness;
    if (drawn() < run->forget)
        return way;
    if (drawn() < 0.5) {
        run->late[rank] = turn;
        run->late_seconds[rank] = seconds;
    } else {
        run->excess[rank] += trial_note(&run->trial[rank], &turn, seconds);
    }
    return way;
}

static void carry_out(struct run *run, int calls, const struct learnt *before)
{
    begin_class(run, before);
    for (int turn = 0; turn < calls; turn++) {
        double lateness = drawn() < 0.05 ? run->takes[NATIVE] * drawn() : 0;
        if (run->blocking || turn % 8 == 0)
            agree(run);
        enum way usual = run->trial[0].way;
        bool tries = run->trial[0].state == TRYING;
        enum way first = call(run, 0, lateness);
        for (int rank = 1; rank < run->ranks; rank++)
            run->bad += call(run, rank, lateness) != first;
        double best = fmin(steady(run, NATIVE), steady(run, OFFLOADED));
        run->trial_excess += tries && first != usual ? steady(run, first) - steady(run, usual) : 0;
        run->calls++;
        run->now += run->takes[first] + run->leaves[run->before] + 5 * best;
        run->before = first;
    }
}

/* Whether a run has chosen the slower of two clearly different ways. Counts runs whose times all become known and that
 * last long enough. */
static int wrong_in_the_end(const struct run *run)
{
    enum way way = run->trial[0].way;
    double turn = steady(run, NATIVE) + steady(run, OFFLOADED);
    if (run->forget > 0 || (run->trial[0].why != TRIED && (run->classes > 1 || run->now < 5 + 400 * turn)))
        return 0;
    return steady(run, way) > 1.3 * steady(run, WAYS - 1 - way);
}

/* Trials together must not cost more than one part in a hundred, plus the cost of the last trial begun. */
static int costly(const struct run *run)
{
    double worst = fabs(steady(run, NATIVE) - steady(run, OFFLOADED)) * TRIAL_TURNS * 2;
    return run->trial_excess > 0.01 * run->now + worst;
}

/* A library that is fast in some launches and slow in others, in any order, with offloading in between. */
static int misled_by_one_launch(uint64_t seed)
{
    struct learnt learnt = unknown;
    double offloaded = seed % 3 == 0 ? 1.6e-3 : 1.15e-3, mean = 0;
    for (int launch = 0; launch < 4; launch++) {
        struct run run = {.ranks = 2, .blocking = 1, .now = 100}; /* the late time lets trials cost enough */
        run.takes[NATIVE] = seed >> launch & 1 ? 1.7e-3 : 1e-3;
        run.takes[OFFLOADED] = offloaded;
        mean += run.takes[NATIVE] / 4;
        carry_out(&run, 200, &learnt);
        learnt = run.trial[0].learnt;
    }
    enum way faster = mean > offloaded ? OFFLOADED : NATIVE;
    bool alike = fabs(mean / offloaded - 1) < 0.25;
    return learnt.launches != 4 || (!alike && trial_faster(learnt.seconds) != faster);
}

/* Launches that end in the middle of their trial: after four of them the next one tries nothing. */
static int tries_without_end(uint64_t seed)
{
    struct learnt learnt = unknown;
    int bad = 0;
    for (unsigned launch = 0; launch < 6; launch++) {
        struct run run = {.ranks = 2, .blocking = 1, .now = 100, .takes = {1e-3, 1e-3}};
        carry_out(&run, 4 + (int)(seed % TRIAL_TURNS_SHORT), &learnt);
        learnt = run.trial[0].learnt;
        bad += learnt.launches != 0 || learnt.unfinished != (launch < 4 ? launch + 1 : 4);
    }
    struct run run = {.ranks = 2, .blocking = 1, .now = 100, .takes = {1e-3, 1e-3}};
    carry_out(&run, 2055, &learnt); /* the first trial has ended, the second has not */
    learnt = run.trial[0].learnt;
    return bad + (learnt.launches != 1 || learnt.unfinished != 0 || !trial_open(&run.trial[0]));
}

static int report(int number, const char *what, int bad)
{
    printf("%s %d - %s (%d)\n", bad == 0 ? "ok" : "not ok", number, what, bad);
    return bad != 0;
}

int main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 10000, unalike = 0, wrong = 0, dear = 0, tried = 0, misled = 0, endless = 0;
    for (int seed = 0; seed < runs; seed++) {
        struct run run = begin((uint64_t)seed);
        for (int class = 1; class < run.classes; class++)
            carry_out(&run, 40, &unknown);
        carry_out(&run, 400 + seed % 100 * 30, &unknown);
        unalike += run.bad != 0;
        wrong += wrong_in_the_end(&run);
        dear += costly(&run);
        tried += run.trial[0].why == TRIED;
        misled += misled_by_one_launch((uint64_t)seed);
        endless += tries_without_end((uint64_t)seed);
    }
    printf("1..6\n# %d runs, %d of them tried\n", runs, tried);
    return report(1, "all ranks choose alike", unalike) + report(2, "the faster way is taken in the end", wrong) +
           report(3, "trials cost little", dear) + report(4, "many runs try", tried < runs / 4) +
           report(5, "no single launch decides for later ones", misled) +
           report(6, "launches too short for a trial stop trying", endless);
}
