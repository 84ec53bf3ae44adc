/*
 * trials.h: when a class of calls is tried on both paths, and the conclusions; pure, see trials.c.
 */
#ifndef OUTBOARD_MPI_TRIALS_H
#define OUTBOARD_MPI_TRIALS_H

#include <stdbool.h>
#include <stdint.h>

/* How a call is carried out. */
enum path { NATIVE, OFFLOADED, PATHS };

/* The reason for the path of calls. */
enum reason {
    BY_SETTING, /* OUTBOARD_CHOICE=offload */
    BY_RULE,    /* the rule of choice.c */
    BY_CACHE,   /* from an earlier run */
    BY_TRIAL,   /* in this run */
    REASONS
};

/* The results of launches of programs so far, as a mean. */
struct estimate {
    double seconds[PATHS]; /* 0 where unknown */
    unsigned launches;
    unsigned unfinished;   /* later launches that ended before their trial did */
};

/* A trial takes one path for a run of turns. The first turn is not timed. It waits for effects of the other path, such
 * as ranks that left a call at different times. */
#define TRIAL_RUN 5
#define TRIAL_TURNS_SHORT (2 * TRIAL_RUN)
#define TRIAL_RUNS 8
#define TRIAL_TURNS (TRIAL_RUNS * TRIAL_RUN)

/* The vector on which the members agree, by the maximum of each entry. */
enum {
    VECTOR_SECONDS = 0,            /* by turn; INFINITY if a rank does not know it yet */
    VECTOR_RUNS = TRIAL_TURNS,     /* by run: the mean of its timed turns on this rank */
    VECTOR_ELAPSED = VECTOR_RUNS + TRIAL_RUNS, /* seconds since MPI_Init, negative, so that the least counts */
    VECTOR_EXCESS,                 /* seconds that other trials have cost so far */
    VECTOR_MARK,                   /* identifies class and question, */
    VECTOR_UNMARK,                 /* and its negative: both are equal on all ranks */
    VECTOR_LENGTH
};

enum trial_state { RESTING, REQUESTING, TRYING, JUDGING, DECIDED };

struct trial {
    enum trial_state state;
    enum path path;           /* of calls outside trials */
    enum reason reason;
    uint64_t calls;
    uint64_t next_trial;      /* call at which the next trial is requested */
    uint64_t gap;             /* calls between this trial and the one after */
    int turns;                /* turns of this trial so far */
    int judged_at;            /* turns after which the trial is judged */
    int misses;               /* judgements put off, since a rank lacked a time */
    int calls_to_skip;        /* blocking calls to let pass before the next judgement */
    unsigned serial;          /* number of the trial */
    double charged;           /* seconds that trial_record() has returned for this trial */
    double seconds[TRIAL_TURNS];
    struct estimate prior;    /* results of earlier launches */
    struct estimate estimate; /* with the last trial of this launch, as agreed; decides */
};

/* The position of a call in a trial: its turn, or -1. */
struct trial_turn {
    int number;
    unsigned serial;
};

/* The faster path, given the time of each path. */
enum path trial_faster(const double *seconds);
/* Whether no further trial is needed: enough launches have tried both paths, or one path took twice as long. */
bool trial_conclusive(const struct estimate *estimate);
/* The first trial is requested at call number `first`, or later if enough launches have tried. 0 means never. */
void trial_start(struct trial *trial, enum path path, enum reason reason, const struct estimate *prior, uint64_t first);
/* Counts one call and returns its path, which depends only on the count and on the agreements. */
enum path trial_count_call(struct trial *trial, struct trial_turn *turn);
/* Records the time of a turn; times of a trial that has ended are ignored. Returns this rank's estimate of the cost in
 * seconds: the whole time of a turn on another path than the chosen one. */
double trial_record(struct trial *trial, const struct trial_turn *turn, double seconds);
/* Whether the trial waits for an agreement. */
bool trial_awaits_agreement(const struct trial *trial);
/* Whether a trial has begun and has not ended. */
bool trial_open(const struct trial *trial);
/* Called once in each blocking call while the trial waits: whether to agree now. */
bool trial_due(struct trial *trial);
/* Fills in this rank's entries; `excess` is the cost of all trials, `elapsed` the time since MPI_Init. */
void trial_fill_vector(const struct trial *trial, unsigned class_key, double excess, double elapsed, double *vector);
/* The factor by which the communicator's calls must grow before a class requests a trial again, by the agreed vector.
 * At most 1 if a class may request a trial now. */
double trial_growth_needed(const double *vector);
/* Processes the agreed vector. Once a trial has ended, returns the seconds that the slower path has cost, less the sum
 * that trial_record() has returned, else 0. */
double trial_apply_agreement(struct trial *trial, const double *vector);

/* libm has these, but a program that needs no libm need not load it. */
static inline double smaller(double one, double other)
{
    return one < other ? one : other;
}
static inline double larger(double one, double other)
{
    return one > other ? one : other;
}

#endif
