/*
 * trials.h: when a class of calls is tried both ways, and the conclusions; pure, see trials.c.
 */
#ifndef OUTBOARD_MPI_TRIALS_H
#define OUTBOARD_MPI_TRIALS_H

#include <stdbool.h>
#include <stdint.h>

/* The way in which a call is carried out. */
enum way { NATIVE, OFFLOADED, WAYS };

/* The reason for the way of calls. */
enum why {
    SET,        /* OUTBOARD_CHOICE=offload */
    BUILT_IN,   /* the rule of choice.c */
    REMEMBERED, /* from an earlier run */
    TRIED,      /* in this run */
    WHYS
};

/* The results of launches of programs so far, as a mean. */
struct learnt {
    double seconds[WAYS]; /* 0 where unknown */
    unsigned launches;
    unsigned unfinished;  /* later launches that ended before their trial did */
};

/* A trial goes one way for a run of turns. The first turn is not timed: it waits for effects of the way before, such as
 * ranks that left a call at different times. */
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

enum trial_state { RESTING, ASKING, TRYING, JUDGING, DECIDED };

struct trial {
    enum trial_state state;
    enum way way;              /* of calls outside trials */
    enum why why;
    uint64_t calls;
    uint64_t next;             /* call at which the next trial is requested */
    uint64_t gap;              /* calls between this trial and the one after */
    int turns;                 /* turns of this trial so far */
    int until;                 /* turns after which the trial is judged */
    int misses;                /* judgements put off, since a rank lacked a time */
    int skip;                  /* blocking calls to let pass before the next judgement */
    unsigned serial;           /* number of the trial */
    double charged;            /* seconds that trial_note() has returned for this trial */
    double seconds[TRIAL_TURNS];
    struct learnt before;      /* results of earlier launches */
    struct learnt learnt;      /* and with the last trial of this launch, as agreed; decides */
};

/* The position of a call in a trial: its turn, or -1. */
struct turn_of {
    int turn;
    unsigned serial;
};

/* The faster way for these times of both. */
enum way trial_faster(const double *seconds);
/* Whether no further trial is needed: enough launches have tried both ways, or one way took twice as long. */
bool trial_sure(const struct learnt *learnt);
/* The first trial is requested at call number `first`, later if enough launches have tried; 0: never. */
void trial_start(struct trial *trial, enum way way, enum why why, const struct learnt *before, uint64_t first);
/* Counts one call and returns its way, which depends only on the count and on the agreements. */
enum way trial_turn(struct trial *trial, struct turn_of *turn);
/* Records the time of a turn; times of a trial that has ended are ignored. Returns this rank's estimate of the cost in
 * seconds: the whole time of a turn that goes another way than the chosen one. */
double trial_note(struct trial *trial, const struct turn_of *turn, double seconds);
/* Whether the trial waits for an agreement. */
bool trial_waits(const struct trial *trial);
/* Whether a trial has begun and has not ended. */
bool trial_open(const struct trial *trial);
/* Called once in each blocking call while the trial waits: whether to agree now. */
bool trial_due(struct trial *trial);
/* Fills in this rank's entries; `excess` is the cost of all trials, `elapsed` the time since MPI_Init. */
void trial_fill(const struct trial *trial, unsigned class_key, double excess, double elapsed, double *vector);
/* The factor by which the communicator's calls must grow before a class requests a trial again, by the agreed vector:
 * at most 1 if it may request one now. */
double trial_too_early(const double *vector);
/* Processes the agreed vector. Once a trial has ended, returns the seconds that the slower way has cost, less the sum
 * that trial_note() has returned, else 0. */
double trial_agree(struct trial *trial, const double *vector);

#endif
